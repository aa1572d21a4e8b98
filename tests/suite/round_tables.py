"""A second transcription of MLPerf's rounds, made from the originals and not from our TOML files.

Sources: mlperf.conf, MODEL_CONFIG, RESULT_FIELD_BENCHMARK_OVERWRITE, LLM_LATENCY_LIMITS and
OFFLINE_MIN_SPQ_SINCE_V4 of mlcommons/inference, as each round had them. One row per workload and
table; `rows` reads them.

SEEDS: sample library, sample index, schedule.

SIZES: workload, checker's name, samples, in memory, of accuracy runs where others, tokens of an
answer (fewest-most/most in accuracy runs), equal issue (e), token latencies (t), tokens inferred
(i and how many), the checker's name of Interactive, compliance tests.

RUNS: workload, scenarios in the datacenter and at the edge (O Offline, S Server, I Interactive,
1 SingleStream, M MultiStream; after + optional; after @ the only target), samples of Offline,
limits of Server and Interactive (ms, or TTFT/TPOT in ms), what is reported.

GATES: workload, targets in % (with the checker's suffix or, in brackets, without), then the
checker's keys with references: times the target; v: better when lower; *a..b: shares of the
reference; =a..b: scores.
"""

from __future__ import annotations

SEEDS = {
    "v4.1": (3066443479025735752, 10688027786191513374, 14962580496156340209),
    "v5.0": (6023615788873153749, 15036839855038426416, 9933818062894767841),
    "v5.1": (1780908523862526354, 14771362308971278857, 18209322760996052031),
    "v6.0": (2465351861681999779, 14276810075590677512, 3936089224930324775),
    "v6.1": (2085463073848966840, 2747215439041700203, 16159082839903944936),
}

SIZES = {
    "v4.1": """
resnet50            resnet               50000   1024   -  -       -      -  01,04,05
retinanet           retinanet            24781   64     -  -       -      -  01,05
bert                bert                 10833   10833  -  -       -      -  01,05
dlrm-v2             dlrm-v2              330067  204800 -  -       -      -  01,05
3d-unet             3d-unet              43      43     -  -       e      -  01,05
gptj                gptj                 13368   13368  -  30-128  e,i69  -  -
llama2-70b          llama2-70b           24576   24576  -  1-1024  e,t    -  06
stable-diffusion-xl stable-diffusion-xl  5000    5000   -  -       -      -  01,04
mixtral-8x7b        mixtral-8x7b         15000   15000  -  1-1024  e,t    -  06
""",
    "v5.0": """
resnet50            resnet               50000   1024   -  -       -      -  01,04
retinanet           retinanet            24781   64     -  -       -      -  01
bert                bert                 10833   10833  -  -       -      -  01
dlrm-v2             dlrm-v2              330067  204800 -  -       -      -  01
3d-unet             3d-unet              43      43     -  -       e      -  01
gptj                gptj                 13368   13368  -  30-128  e,i69  -  -
llama2-70b          llama2-70b           24576   24576  -  1-1024  e,t  llama2-70b-interactive  06
stable-diffusion-xl stable-diffusion-xl  5000    5000   -  -       -      -  01,04
mixtral-8x7b        mixtral-8x7b         15000   15000  -  2-1024  e,t    -  06
llama3_1-405b       llama3.1-405b        8313    8313   -  2-20000 e,t    -  06
rgat                rgat                 788379  788379 -  -       e      -  01
pointpainting       pointpainting        39987   1024   -  -       -      -  01,04
""",
    "v5.1": """
resnet50            resnet               50000   1024   -  -       -      -  01,04
retinanet           retinanet            24781   64     -  -       -      -  01
bert                bert                 10833   10833  -  -       -      -  01
dlrm-v2             dlrm-v2              330067  204800 -  -       -      -  01
3d-unet             3d-unet              43      43     -  -       e      -  01
llama3_1-8b         llama3.1-8b          13368   13368  -  1-128   e,t    -  06
llama3_1-8b-edge    llama3.1-8b-edge     5000    5000   -  1-128   e,t    -  -
llama2-70b          llama2-70b           24576   24576  -  1-1024  e,t    -  06
stable-diffusion-xl stable-diffusion-xl  5000    5000   -  -       -      -  01,04
mixtral-8x7b        mixtral-8x7b         15000   15000  -  2-1024  e,t    -  06
llama3_1-405b       llama3.1-405b        8313    8313   -  1-2000  e,t    -  06
rgat                rgat                 788379  788379 -  -       e      -  01
pointpainting       pointpainting        39987   1024   -  -       -      -  01,04
deepseek-r1         deepseek-r1          4388    4388   -  -20000  e,t    -  06
whisper             whisper              1633    1633   -  -200    e,t    -  01
""",
    "v6.0": """
resnet50            resnet               50000   1024   -     -       -    -  01,04
retinanet           retinanet            24781   64     -     -       -    -  01
bert                bert                 10833   10833  -     -       -    -  01
3d-unet             3d-unet              43      43     -     -       e    -  01
llama3_1-8b         llama3.1-8b          13368   13368  -     1-128   e,t  -  06
llama3_1-8b-edge    llama3.1-8b-edge     5000    5000   -     1-128   e,t  -  -
llama2-70b          llama2-70b           24576   24576  -     1-1024  e,t  -  06
stable-diffusion-xl stable-diffusion-xl  5000    5000   -     -       -    -  01,04
mixtral-8x7b        mixtral-8x7b         15000   15000  -     2-1024  e,t  -  06
llama3_1-405b       llama3.1-405b        8313    8313   -     1-2000  e,t  -  06
rgat                rgat                 788379  788379 -     -       e    -  01
pointpainting       pointpainting        39987   1024   -     -       -    -  01,04
deepseek-r1         deepseek-r1          4388    4388   -     -20000  e,t  -  06
whisper             whisper              1633    1633   -     -200    e,t  -  01
gpt-oss-120b        gpt-oss-120b         6396    6396   4395  -10240/32768  e,t  -  07,09
wan-2.2-t2v-a14b    wan-2.2-t2v-a14b     248     248    -     -       -    -  04
qwen3-vl-235b-a22b  qwen3-vl-235b-a22b   48289   48289  -     -       e    -  -
dlrm-v3             dlrm-v3              349823  349823 -     -       -    -  08
yolo                yolo                 1525    64     -     -       -    -  01
""",
    "v6.1": """
resnet50            resnet               50000   1024   -     -       -    -  01,04
bert                bert                 10833   10833  -     -       -    -  01
3d-unet             3d-unet              43      43     -     -       e    -  01
llama3_1-8b         llama3.1-8b          13368   13368  -     1-128   e,t  -  06
llama3_1-8b-edge    llama3.1-8b-edge     5000    5000   -     1-128   e,t  -  -
llama2-70b          llama2-70b           24576   24576  -     1-1024  e,t  -  06
stable-diffusion-xl stable-diffusion-xl  5000    5000   -     -       -    -  01,04
rgat                rgat                 788379  788379 -     -       e    -  01
deepseek-r1         deepseek-r1          4388    4388   -     -20000  e,t  -  06
whisper             whisper              1633    1633   -     -200    e,t  -  01
gpt-oss-120b        gpt-oss-120b         6396    6396   4395  -10240/32768  e,t  -  07,09
wan-2.2-t2v-a14b    wan-2.2-t2v-a14b     248     248    -     -       -    -  04
qwen3-vl-235b-a22b  qwen3-vl-235b-a22b   48289   48289  -     -       e    -  -
qwen3.6-27b         qwen3.6-27b          995     995    -     -1024   -    -  -
dlrm-v3             dlrm-v3              349823  349823 -     -       -    -  08
yolo                yolo                 1525    64     -     -       -    -  01
e2e-rag-qna         e2e-rag-qna          824     824    -     -       -    -  09
e2e-rag-db          e2e-rag-db           2515    2515   -     -       -    -  -
""",
}

RUNS = {
    "v4.1": """
resnet50             SO  1MO    24576  15        -  samples
retinanet            SO  1MO    24576  100       -  samples
bert                 SO  1O@99  10833  130       -  samples
dlrm-v2              SO  -      24576  60        -  samples
3d-unet              O   1O     43     -         -  samples
gptj                 SO  1O     13368  20000     -  inferred
llama2-70b           SO  -      24576  2000/200  -  tokens
stable-diffusion-xl  SO  1O     5000   20000     -  samples
mixtral-8x7b         SO  -      15000  2000/200  -  tokens
""",
    "v5.0": """
resnet50             SO    1MO  24576   15        -       samples
retinanet            SO    1MO  24576   100       -       samples
bert                 -     1O   10833   -         -       samples
dlrm-v2              SO    -    24576   60        -       samples
3d-unet              O     1O   43      -         -       samples
gptj                 SO    1O   13368   20000     -       inferred
llama2-70b           SO+I  -    24576   2000/200  450/40  tokens
stable-diffusion-xl  SO    1O   5000    20000     -       samples
mixtral-8x7b         SO    -    15000   2000/200  -       tokens
llama3_1-405b        SO    -    8313    6000/175  -       tokens
rgat                 O     -    788379  -         -       samples
pointpainting        -     1    -       -         -       samples
""",
    "v5.1": """
resnet50             -     1MO  24576   -         -        samples
retinanet            SO    1MO  24576   100       -        samples
bert                 -     1O   10833   -         -        samples
dlrm-v2              SO    -    24576   60        -        samples
3d-unet              O     1O   43      -         -        samples
llama3_1-8b          O+SI  -    13368   2000/100  500/30   tokens
llama3_1-8b-edge     -     1O   5000    -         -        tokens
llama2-70b           O+SI  -    24576   2000/200  450/40   tokens
stable-diffusion-xl  SO    1O   5000    20000     -        samples
mixtral-8x7b         SO    -    15000   2000/200  -        tokens
llama3_1-405b        O+SI  -    8313    6000/175  4500/80  tokens
rgat                 O     -    788379  -         -        samples
pointpainting        -     1    -       -         -        samples
deepseek-r1          SO    -    4388    2000/80   -        tokens
whisper              O     O    1633    -         -        tokens
""",
    "v6.0": """
resnet50             -     1MO  24576   -         -        samples
retinanet            -     -    24576   100       -        samples
bert                 -     1O   10833   -         -        samples
3d-unet              O     1O   43      -         -        samples
llama3_1-8b          O+SI  -    13368   2000/100  500/30   tokens
llama3_1-8b-edge     -     1O   5000    -         -        tokens
llama2-70b           O+SI  -    24576   2000/200  450/40   tokens
stable-diffusion-xl  -     1O   5000    -         -        samples
mixtral-8x7b         SO    -    15000   2000/200  -        tokens
llama3_1-405b        O+SI  -    8313    6000/175  4500/80  tokens
rgat                 O     -    788379  -         -        samples
pointpainting        -     1    -       -         -        samples
deepseek-r1          O+SI  -    4388    2000/80   1500/15  tokens
whisper              O     O    1633    -         -        tokens
gpt-oss-120b         O+SI  -    6396    3000/80   2000/15  tokens
wan-2.2-t2v-a14b     1O    -    248     -         -        samples
qwen3-vl-235b-a22b   SO    -    48289   12000     -        samples
dlrm-v3              SO    -    349823  80        -        samples
yolo                 -     1MO  1525    -         -        samples
""",
    "v6.1": """
resnet50             -     1MO  24576   -         -        samples
bert                 -     1O   10833   -         -        samples
3d-unet              O     1O   43      -         -        samples
llama3_1-8b          O+SI  -    13368   2000/100  500/30   tokens
llama3_1-8b-edge     -     1O   5000    -         -        tokens
llama2-70b           O+SI  -    24576   2000/200  450/40   tokens
stable-diffusion-xl  -     1O   5000    -         -        samples
rgat                 O     -    788379  -         -        samples
deepseek-r1          O+SI  -    4388    2000/80   1500/15  tokens
whisper              O     O    1633    -         -        tokens
gpt-oss-120b         O+SI  -    6396    3000/80   2000/15  tokens
wan-2.2-t2v-a14b     1O    -    248     -         -        samples
qwen3-vl-235b-a22b   O+SI  -    48289   12000     1500     samples
qwen3.6-27b          -     1    -       -         -        endpoints
dlrm-v3              SO    -    349823  80        -        samples
yolo                 -     1MO  1525    -         -        samples
e2e-rag-qna          O     -    824     -         -        samples
e2e-rag-db           O     -    2515    -         -        samples
""",
}

GATES = {
    "v4.1": """
resnet50      (99)     acc 76.46
retinanet     (99)     mAP 37.55
bert          99,99.9  F1 90.874
dlrm-v2       99,99.9  AUC 80.31
3d-unet       99,99.9  DICE 0.86170
gptj          99,99.9  ROUGE1 42.9865 ROUGE2 20.1235 ROUGEL 29.9881 GEN_LEN 4016878*0.9..
llama2-70b    99,99.9  ROUGE1 44.4312 ROUGE2 22.0352 ROUGEL 28.6162 \
 TOKENS_PER_SAMPLE 294.45*0.9..1.1
stable-diffusion-xl (100) CLIP_SCORE 31.74981837=31.68631873..31.81331801 \
 FID_SCORE 23.48046692=23.01085758..23.95007626
mixtral-8x7b  (99)     ROUGE1 45.4911 ROUGE2 23.2829 ROUGEL 30.3615 \
 TOKENS_PER_SAMPLE 145.9*0.9..1.1 gsm8k_accuracy 73.78 mbxp_accuracy 60.12
""",
    "v5.0": """
resnet50      (99)     acc 76.46
retinanet     (99)     mAP 37.55
bert          99,99.9  F1 90.874
dlrm-v2       99,99.9  AUC 80.31
3d-unet       99,99.9  DICE 0.86170
gptj          99,99.9  ROUGE1 42.9865 ROUGE2 20.1235 ROUGEL 29.9881 GEN_LEN 4016878*0.9..
llama2-70b    99,99.9  ROUGE1 44.4312 ROUGE2 22.0352 ROUGEL 28.6162 \
 TOKENS_PER_SAMPLE 294.45*0.9..1.1
stable-diffusion-xl (100) CLIP_SCORE 31.74981837=31.68631873..31.81331801 \
 FID_SCORE 23.48046692=23.01085758..23.95007626
mixtral-8x7b  (99)     ROUGE1 45.5989 ROUGE2 23.3526 ROUGEL 30.4608 \
 TOKENS_PER_SAMPLE 144.84=130.356..160.49 gsm8k_accuracy 73.66 mbxp_accuracy 60.16
llama3_1-405b (99)     ROUGEL 21.6666 exact_match 90.1335 TOKENS_PER_SAMPLE 684.68*0.9..1.1
rgat          (99)     acc 72.86
pointpainting (99.9)   mAP 54.25
""",
    "v5.1": """
resnet50      (99)     acc 76.46
retinanet     (99)     mAP 37.55
bert          99,99.9  F1 90.874
dlrm-v2       99,99.9  AUC 80.31
3d-unet       99,99.9  DICE 0.86170
llama3_1-8b   (99)     ROUGE1 38.7792 ROUGE2 15.9075 ROUGEL 24.4957 ROUGELSUM 35.793 \
 GEN_LEN 8167644*0.9..1.1
llama3_1-8b-edge (99)  ROUGE1 39.06 ROUGE2 16.1147 ROUGEL 24.6375 ROUGELSUM 36.124 \
 GEN_LEN 3051113*0.9..1.1
llama2-70b    99,99.9  ROUGE1 44.4312 ROUGE2 22.0352 ROUGEL 28.6162 \
 TOKENS_PER_SAMPLE 294.45*0.9..1.1
stable-diffusion-xl (100) CLIP_SCORE 31.74981837=31.68631873..31.81331801 \
 FID_SCORE 23.48046692=23.01085758..23.95007626
mixtral-8x7b  (99)     ROUGE1 45.5989 ROUGE2 23.3526 ROUGEL 30.4608 \
 TOKENS_PER_SAMPLE 144.84=130.356..160.49 gsm8k_accuracy 73.66 mbxp_accuracy 60.16
llama3_1-405b (99)     ROUGEL 21.6666 exact_match 90.1335 TOKENS_PER_SAMPLE 684.68*0.9..1.1
rgat          (99)     acc 72.86
pointpainting (99.9)   mAP 54.25
deepseek-r1   (99)     exact_match 81.3582 TOKENS_PER_SAMPLE 3886.2274*0.9..1.1
whisper       (99)     ACCURACY 97.9329
""",
    "v6.0": """
resnet50      (99)     acc 76.46
retinanet     (99)     mAP 37.55
bert          99,99.9  F1 90.874
3d-unet       99,99.9  DICE 0.86170
llama3_1-8b   (99)     ROUGE1 38.7792 ROUGE2 15.9075 ROUGEL 24.4957 ROUGELSUM 35.793 \
 GEN_LEN 8167644*0.9..1.1
llama3_1-8b-edge (99)  ROUGE1 39.06 ROUGE2 16.1147 ROUGEL 24.6375 ROUGELSUM 36.124 \
 GEN_LEN 3051113*0.9..1.1
llama2-70b    99,99.9  ROUGE1 44.4312 ROUGE2 22.0352 ROUGEL 28.6162 \
 TOKENS_PER_SAMPLE 294.45*0.9..1.1
stable-diffusion-xl (100) CLIP_SCORE 31.74981837=31.68631873..31.81331801 \
 FID_SCORE 23.48046692=23.01085758..23.95007626
mixtral-8x7b  (99)     ROUGE1 45.5989 ROUGE2 23.3526 ROUGEL 30.4608 \
 TOKENS_PER_SAMPLE 144.84=130.356..160.49 gsm8k_accuracy 73.66 mbxp_accuracy 60.16
llama3_1-405b (99)     ROUGEL 21.6666 exact_match 90.1335 TOKENS_PER_SAMPLE 684.68*0.9..1.1
rgat          (99)     acc 72.86
pointpainting (99.9)   mAP 54.25
deepseek-r1   (99)     exact_match 81.3582 TOKENS_PER_SAMPLE 3886.2274*0.9..1.1
whisper       (99)     ACCURACY 97.9329
gpt-oss-120b  (99)     exact_match 83.13 TOKENS_PER_SAMPLE 9999*..1.1
qwen3-vl-235b-a22b (99) F1_HIERARCHICAL 0.7903
dlrm-v3       (99.9)   DLRM_NE 0.86687v DLRM_ACC 0.69651 DLRM_AUC 0.78663
yolo          95,99    mAP 53.4
wan-2.2-t2v-a14b (99)  vbench_score 70.48
""",
    "v6.1": """
resnet50      (99)     acc 76.46
bert          99,99.9  F1 90.874
3d-unet       99,99.9  DICE 0.86170
llama3_1-8b   (99)     ROUGE1 38.7792 ROUGE2 15.9075 ROUGEL 24.4957 ROUGELSUM 35.793 \
 GEN_LEN 8167644*0.9..1.1
llama3_1-8b-edge (99)  ROUGE1 39.06 ROUGE2 16.1147 ROUGEL 24.6375 ROUGELSUM 36.124 \
 GEN_LEN 3051113*0.9..1.1
llama2-70b    99.9     ROUGE1 44.4312 ROUGE2 22.0352 ROUGEL 28.6162 \
 TOKENS_PER_SAMPLE 294.45*0.9..1.1
stable-diffusion-xl (100) CLIP_SCORE 31.74981837=31.68631873..31.81331801 \
 FID_SCORE 23.48046692=23.01085758..23.95007626
rgat          (99)     acc 72.86
deepseek-r1   (99)     exact_match 81.3582 TOKENS_PER_SAMPLE 3886.2274*0.9..1.1
whisper       (99)     ACCURACY 97.9329
gpt-oss-120b  (99)     exact_match 83.13 TOKENS_PER_SAMPLE 9999*..1.1
qwen3-vl-235b-a22b (99) F1_HIERARCHICAL 0.7903
qwen3.6-27b   (97)     mAP 86.23 - 87.96
dlrm-v3       (99.9)   DLRM_NE 0.86687v DLRM_ACC 0.69651 DLRM_AUC 0.78663
yolo          95,99    mAP 53.4
wan-2.2-t2v-a14b (99)  vbench_score 70.48
e2e-rag-qna   (100)    E2E_ACCURACY 33.95=33.95..
e2e-rag-db    (100)    E2E_ACCURACY 98=98.. - 100=100..
""",
}

OWN_OF_A_SCENARIO = {
    # accuracy samples, and the gate
    ("v6.1", "qwen3-vl-235b-a22b", "Interactive"): (8000, "F1_HIERARCHICAL 0.7878"),
}

KITS19_MD5 = """
00000 470ec60377be417a9c271ffd81c1d610  00003 a5536433cf1c01aaa8c4293ef59a826c
00005 dbb4141573d72278c1724debe16311f5  00006 4a81aa95c7a7613138d9c148eea05a66
00012 a4f576fd327ba35242802b01f204dede  00024 f0c24290a38491c3a3901e389df345bc
00034 a40e1ef70291072b4790f2d3056972cc  00041 4ddaf586d0a7ea7f55491f9ec776ad24
00044 b7b2e115ed7fcd3e0e757ff8ac164733  00049 0b7d71d0c11458a602d71490449943d3
00052 7fd78f6dd694fe90ff6b5332c6c30f19  00056 1ff976858ecd43a9045b2c571ac18b42
00061 f631a2edb275f4fa2bc662c210dc29e2  00065 c7d63dc01cf8ca5c08075c0dee7fd9ae
00066 d3741a5f717ca978f3bb49fabd2d6651  00070 347b40ea5c3e30a8e313f6fad5504acd
00076 d572f849e8de3e352009f7156f0988ce  00078 de564386f95f97c9c276e11883acb018
00080 23cd0e88a3c1f7995082137bb7d5ab7b  00084 2a61a63abff567c4b107efeec24528ad
00086 69453d214225bcc67417c1726b1c6f31  00087 3ef7fc6c59b3a629fb4feddca92825f0
00092 4da4423b41cc606f42ad40fa769229af  00111 9f43e5824fd5459bfa7d523197346003
00112 18b9a976fd0683990a997241f1f6c588  00125 10c8971914f9d7beb66ff2d5e87f3bf4
00128 f1c1d420474ad5254ffdd6d8fbaffaa9  00138 8661d26af4271de29fb8593d1da3f195
00157 55a47901624695e3aacd9b0fb8467555  00160 0b1b2d50203070898af64ac6457c7568
00161 0e4b57e587e36042d5473de11d1792c2  00162 89f53aac7e1a421505f9b6cacdc5f09e
00169 f6c0594e20016e2b5086eae22963d051  00171 00a2700e3ff23896d7fd1ca5a30ddf6a
00176 430f5f2da6247f52b68346d549ed672e  00185 2ae858449b63e2fe4466c29087540e9c
00187 15022874121b70aa7f5f18d1a197816b  00189 966297c3adc7766655e050220b840dee
00198 cbfbd56f5c1a2570cc9d73c9fad8222a  00203 f82f9adab8d3ea22391a2e9af5572288
00206 0e59b9a2ef5bd4549938a97d136b06a8  00207 4c437995fb990736385e0dc2241255aa
00400 2ae858449b63e2fe4466c29087540e9c
"""
"""meta/checksum_inference.json of 3d-unet-kits19; the same at every tag."""


def rows(table: str) -> dict[str, list[str]]:
    """Return the cells of a table by workload; a backslash continues a row."""
    found = [line.split() for line in table.strip().splitlines()]
    assert len({row[0] for row in found}) == len(found)
    return {row[0]: row[1:] for row in found}

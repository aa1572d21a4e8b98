/* A library with the ABI of NVML whose GPUs are described by a scenario file.
 *
 * The scenario's path is in FAKE_NVML_SCENARIO; the file is read again whenever it is replaced.
 * Where FAKE_NVML_LOG names a file, every call adds a line to it: monotonic ns, thread, function,
 * device, return code. Times in a scenario are seconds after t0; power is a closed-form function
 * of CLOCK_MONOTONIC - t0 with a closed-form integral, so that every process sees the same GPU and
 * fake_joules() gives the exact energy. Threads may call at once.
 *
 *   driver TEXT | cuda N | t0 MONOTONIC_S
 *   shutdown AT                                   the library forgets that it was initialised
 *   fail FUNCTION CODE [after= until= calls=FROM-TO every=N dev=N]
 *                                                 FUNCTION may end in *; "field:186[:SCOPE]" too
 *   show FUNCTION VALUE [the same]                garbage in place of each number that it gives
 *   latency FUNCTION MICROSECONDS [spin] [dev=N]
 * and for each GPU, after a line "device":
 *   name TEXT | uuid TEXT | arch N | pci DEVICE SUBSYSTEM | vbios TEXT
 *   wave const W | square LOW HIGH PERIOD [DUTY] | sine MEAN SWING PERIOD | steps AT:W ...
 *   energy PERIOD_MS [phase= lag= base= reset=] | energy none       (lag, phase in ms, base in J)
 *   instant REFRESH_MS WINDOW_MS | instant none | average none | module none|only
 *   limit W [default= min= max= later= at= enforced=] (what a process sets is in SCENARIO.limit.DEVICE) | temp C [rise=C_PER_S memory= slowdown=] | clocks SM MEM | pstate N
 *   mem TOTAL USED [more=BYTES after= until=] | util GPU MEM [after= until= mean=MS steps=MS] | xid NUMBER at= | ecc CURRENT PENDING [corrected= uncorrected= after=]
 *   pcie GEN WIDTH MAX_GEN MAX_WIDTH [replay= after= width= at=] | remapped PENDING
 *   mig INSTANCES [pending= energy=parent] | event MASK [after= until= sm=]
 *   proc PID|self BYTES [after= until=] | counters none
 *   virtualization N | gsp TEXT | application SM DEFAULT | near LEVEL [p2p=STATUS]
 *   nvlink UP LINKS [to=DEV] [fell=LINK at=] [sent=B/S received=B/S] | nvlink none     (to=: else a switch)
 *   fabric STATE MASK [later= at=]               state 3 completed, 0 no NVSwitch; its health mask
 *   linkerror COUNTER LINK COUNT [after=]        COUNTER 0 replay, 1 recovery, 2 flits, 3 data
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

typedef unsigned long long u64;
enum { OK, UNINITIALIZED, INVALID, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND = 6, TOO_SMALL = 7, TIMEOUT = 10 };
enum { DEVICES = 48, RULES = 96, EVENTS = 16, STEPS = 64, INSTANCES = 7, SETS = 1024 };
enum { CONST, SQUARE, SINE, STEPPED };

typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } pci_t;
typedef struct { u64 total, free, used; } memory_t;
typedef struct { unsigned version; u64 total, reserved, free, used; } memory_v2_t;
typedef union { double d; unsigned u; unsigned long ul; u64 ull; } value_t;
typedef struct {
    uint32_t field, scope; int64_t timestamp, latency; unsigned type, ret; value_t value;
} field_t;
typedef struct { unsigned pid; u64 used; unsigned gi, ci; } process_t;
typedef struct { unsigned version, sensor; int temperature; } temperature_t;
typedef struct { u64 reference, violation; } violation_t;
typedef struct { unsigned gpu, memory; } utilization_t;
typedef struct { unsigned counts[7]; u64 memory_mb; } attributes_t;
typedef struct { u64 time; value_t value; } sample_t;
typedef struct { void *device; u64 type, data; unsigned gi, ci; } event_data_t;
typedef struct { unsigned version; char cluster[16]; unsigned status, clique, state, health; } fabric_t;

_Static_assert(sizeof(pci_t) == 68 && sizeof(memory_t) == 24 && sizeof(memory_v2_t) == 40, "");
_Static_assert(sizeof(field_t) == 40 && sizeof(process_t) == 24 && sizeof(temperature_t) == 12, "");
_Static_assert(sizeof(violation_t) == 16 && sizeof(utilization_t) == 8, "");
_Static_assert(sizeof(attributes_t) == 40 && sizeof(sample_t) == 16, "");
_Static_assert(sizeof(event_data_t) == 32 && sizeof(fabric_t) == 36, "");

typedef struct { char function[64]; int code, every, dev, from, to; double after, until; int calls, shows; u64 value; } fail_t;
typedef struct { char function[64]; double us; int spin, dev; } latency_t;
typedef struct { unsigned mask, sm; double after, until; } event_t;
typedef struct { int pid; u64 bytes; double after, until; } proc_t;
typedef struct { unsigned number; double at; } xid_t;
typedef struct { unsigned counter, link; u64 count; double after; } linkerror_t;
typedef struct device {
    struct device *parent; /* of a MIG instance */
    int number;
    char name[96], uuid[96], vbios[32];
    unsigned arch, pci_device, pci_subsystem;
    int wave, n_steps;
    double a, b, period, duty, step_at[STEPS], step_w[STEPS];
    double quantum, phase, lag, base, reset, refresh, window;
    int has_energy, has_instant, has_average, has_module, only_module, has_counters;
    double limit, limit_default, limit_min, limit_max, limit_later, limit_at, limit_enforced;
    double temp, rise, memory_temp, slowdown_temp;
    double util_after, util_until, util_mean, util_steps;
    unsigned sm, mem_clock, pstate, util_gpu, util_mem;
    u64 mem_total, mem_used, mem_more;
    double mem_after, mem_until;
    int has_ecc, ecc, ecc_pending, remapped;
    u64 corrected, uncorrected;
    double ecc_after, replay_after, width_at;
    unsigned pcie[4], replay, width_later;
    int mig, mig_pending, mig_energy, n_events, n_procs, n_xids;
    unsigned virtualization, links_up, links, application[2], near, p2p;
    unsigned fabric_state, fabric_health, fabric_later;
    double fabric_at;
    int links_to, link_fell, n_linkerrors;
    double link_at, link_sent, link_received;
    linkerror_t linkerrors[EVENTS];
    char gsp[32];
    event_t events[EVENTS];
    proc_t procs[EVENTS];
    xid_t xids[EVENTS];
} device_t;

static struct {
    char driver[80], path[512];
    int cuda, n_devices, n_fails, n_latencies, initialised, forgotten;
    double t0, shutdown;
    fail_t fails[RULES];
    latency_t latencies[RULES];
    struct stat seen;
} s;
static pthread_rwlock_t scenario_lock = PTHREAD_RWLOCK_INITIALIZER; /* held through a call */
static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static device_t devices[DEVICES];
static device_t instances[DEVICES][INSTANCES];

static double monotonic(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static double now(void) { return monotonic() - s.t0; }

/* ---- the scenario ---- */

static double option(const char *rest, const char *key, double otherwise) {
    char wanted[32];
    snprintf(wanted, sizeof wanted, " %s=", key);
    const char *found = strstr(rest, wanted);
    return found ? atof(found + strlen(wanted)) : otherwise;
}

static void wave(device_t *d, const char *text) {
    char kind[16] = "";
    int used = 0;
    sscanf(text, "%15s%n", kind, &used);
    text += used;
    d->duty = 0.5;
    if (!strcmp(kind, "const")) d->wave = CONST, sscanf(text, "%lf", &d->a);
    if (!strcmp(kind, "square"))
        d->wave = SQUARE, sscanf(text, "%lf %lf %lf %lf", &d->a, &d->b, &d->period, &d->duty);
    if (!strcmp(kind, "sine"))
        d->wave = SINE, sscanf(text, "%lf %lf %lf", &d->a, &d->b, &d->period);
    if (strcmp(kind, "steps")) return;
    d->wave = STEPPED;
    for (int n; d->n_steps < STEPS; text += n, d->n_steps++)
        if (sscanf(text, " %lf:%lf%n", &d->step_at[d->n_steps], &d->step_w[d->n_steps], &n) != 2)
            break;
}

static void general(const char *key, const char *rest) {
    if (!strcmp(key, "driver")) sscanf(rest, "%79s", s.driver);
    if (!strcmp(key, "cuda")) sscanf(rest, "%d", &s.cuda);
    if (!strcmp(key, "t0")) s.t0 = atof(rest);
    if (!strcmp(key, "shutdown")) s.shutdown = atof(rest);
    if ((!strcmp(key, "fail") || !strcmp(key, "show")) && s.n_fails < RULES) {
        fail_t *f = &s.fails[s.n_fails++];
        sscanf(rest, "%63s %llu", f->function, &f->value);
        f->code = f->value, f->shows = *key == 's';
        f->after = option(rest, "after", -1e9);
        f->until = option(rest, "until", 1e18);
        f->every = option(rest, "every", 1);
        f->dev = option(rest, "dev", -1);
        f->from = option(rest, "calls", 1);
        f->to = 1 << 30;
        const char *range = strstr(rest, " calls=");
        if (range && strchr(range, '-')) f->to = atoi(strchr(range, '-') + 1);
    }
    if (!strcmp(key, "latency") && s.n_latencies < RULES) {
        latency_t *l = &s.latencies[s.n_latencies++];
        sscanf(rest, "%63s %lf", l->function, &l->us);
        l->spin = strstr(rest, " spin") != NULL;
        l->dev = option(rest, "dev", -1);
    }
}

static void of_device(device_t *d, const char *key, const char *rest) {
    int none = strstr(rest, "none") != NULL;
    if (!strcmp(key, "name")) sscanf(rest, " %95[^\n]", d->name);
    if (!strcmp(key, "uuid")) sscanf(rest, "%95s", d->uuid);
    if (!strcmp(key, "vbios")) sscanf(rest, "%31s", d->vbios);
    if (!strcmp(key, "arch")) sscanf(rest, "%u", &d->arch);
    if (!strcmp(key, "pci")) sscanf(rest, "%x %x", &d->pci_device, &d->pci_subsystem);
    if (!strcmp(key, "wave")) wave(d, rest);
    if (!strcmp(key, "energy")) {
        d->has_energy = !none;
        d->quantum = atof(rest) / 1e3;
        d->phase = option(rest, "phase", 0) / 1e3;
        d->lag = option(rest, "lag", 0) / 1e3;
        d->base = option(rest, "base", 1e6);
        d->reset = option(rest, "reset", 1e18);
    }
    if (!strcmp(key, "instant")) {
        d->has_instant = !none;
        if (!none) sscanf(rest, "%lf %lf", &d->refresh, &d->window);
    }
    if (!strcmp(key, "average")) d->has_average = !none;
    if (!strcmp(key, "module")) d->has_module = !none, d->only_module = strstr(rest, "only") != NULL;
    if (!strcmp(key, "counters")) d->has_counters = !none;
    if (!strcmp(key, "limit")) {
        d->limit = atof(rest);
        d->limit_default = option(rest, "default", d->limit);
        d->limit_min = option(rest, "min", 100);
        d->limit_max = option(rest, "max", d->limit);
        d->limit_later = option(rest, "later", d->limit);
        d->limit_at = option(rest, "at", 1e18);
        d->limit_enforced = option(rest, "enforced", 1e18);
    }
    if (!strcmp(key, "temp")) {
        d->temp = atof(rest);
        d->rise = option(rest, "rise", 0);
        d->memory_temp = option(rest, "memory", 0);
        d->slowdown_temp = option(rest, "slowdown", 92);
    }
    if (!strcmp(key, "clocks")) sscanf(rest, "%u %u", &d->sm, &d->mem_clock);
    if (!strcmp(key, "pstate")) sscanf(rest, "%u", &d->pstate);
    if (!strcmp(key, "mem")) {
        sscanf(rest, "%llu %llu", &d->mem_total, &d->mem_used);
        d->mem_more = option(rest, "more", 0);
        d->mem_after = option(rest, "after", 0), d->mem_until = option(rest, "until", 1e18);
    }
    if (!strcmp(key, "util")) {
        sscanf(rest, "%u %u", &d->util_gpu, &d->util_mem);
        d->util_after = option(rest, "after", -1e9);
        d->util_until = option(rest, "until", 1e18);
        d->util_mean = option(rest, "mean", 0) / 1e3;
        d->util_steps = option(rest, "steps", 0) / 1e3;
    }
    if (!strcmp(key, "xid") && d->n_xids < EVENTS) {
        d->xids[d->n_xids].number = atoi(rest);
        d->xids[d->n_xids++].at = option(rest, "at", 0);
    }
    if (!strcmp(key, "ecc")) {
        d->has_ecc = !none;
        sscanf(rest, "%d %d", &d->ecc, &d->ecc_pending);
        d->corrected = option(rest, "corrected", 0);
        d->uncorrected = option(rest, "uncorrected", 0);
        d->ecc_after = option(rest, "after", -1e9);
    }
    if (!strcmp(key, "pcie")) {
        sscanf(rest, "%u %u %u %u", &d->pcie[0], &d->pcie[1], &d->pcie[2], &d->pcie[3]);
        d->replay = option(rest, "replay", 0);
        d->replay_after = option(rest, "after", -1e9);
        d->width_later = option(rest, "width", d->pcie[1]);
        d->width_at = option(rest, "at", 1e18);
    }
    if (!strcmp(key, "virtualization")) sscanf(rest, "%u", &d->virtualization);
    if (!strcmp(key, "gsp")) sscanf(rest, "%31s", d->gsp);
    if (!strcmp(key, "nvlink")) {
        d->links_up = d->links = 0;
        sscanf(rest, "%u %u", &d->links_up, &d->links);
        d->links_to = option(rest, "to", -1);
        d->link_fell = option(rest, "fell", -1);
        d->link_at = option(rest, "at", 1e18);
        d->link_sent = option(rest, "sent", 0);
        d->link_received = option(rest, "received", 0);
    }
    if (!strcmp(key, "fabric")) {
        sscanf(rest, "%u %i", &d->fabric_state, (int *)&d->fabric_health);
        d->fabric_later = option(rest, "later", d->fabric_health);
        d->fabric_at = option(rest, "at", 1e18);
    }
    if (!strcmp(key, "near")) d->near = atoi(rest), d->p2p = option(rest, "p2p", 0);
    if (!strcmp(key, "linkerror") && d->n_linkerrors < EVENTS) {
        linkerror_t *e = &d->linkerrors[d->n_linkerrors++];
        sscanf(rest, "%u %u %llu", &e->counter, &e->link, &e->count);
        e->after = option(rest, "after", -1e9);
    }
    if (!strcmp(key, "application")) sscanf(rest, "%u %u", &d->application[0], &d->application[1]);
    if (!strcmp(key, "remapped")) d->remapped = atoi(rest);
    if (!strcmp(key, "mig")) {
        d->mig = atoi(rest);
        d->mig_pending = option(rest, "pending", d->mig > 0);
        d->mig_energy = strstr(rest, "energy=parent") != NULL;
    }
    if (!strcmp(key, "event") && d->n_events < EVENTS) {
        event_t *e = &d->events[d->n_events++];
        e->mask = strtoul(rest, NULL, 0);
        e->after = option(rest, "after", -1e9);
        e->until = option(rest, "until", 1e18);
        e->sm = option(rest, "sm", 0);
    }
    if (!strcmp(key, "proc") && d->n_procs < EVENTS) {
        proc_t *p = &d->procs[d->n_procs++];
        char who[32] = "";
        sscanf(rest, "%31s %llu", who, &p->bytes);
        p->pid = strcmp(who, "self") ? atoi(who) : getpid();
        p->after = option(rest, "after", -1e9);
        p->until = option(rest, "until", 1e18);
    }
}

static device_t *new_device(void) {
    device_t *d = &devices[s.n_devices];
    memset(d, 0, sizeof *d);
    d->number = s.n_devices++;
    d->has_energy = d->has_instant = d->has_average = d->has_counters = 1;
    d->reset = d->ecc_after = d->replay_after = 1e18;
    d->mig = -1;
    snprintf(d->name, sizeof d->name, "NVIDIA H200");
    snprintf(d->uuid, sizeof d->uuid, "GPU-%d", d->number);
    snprintf(d->vbios, sizeof d->vbios, "96.00.A1");
    d->arch = 9;
    const char *plain[][2] = {{"wave", " const 300"}, {"energy", " 100"}, {"instant", " 0 20"},
        {"limit", " 700"}, {"temp", " 50 memory=60"}, {"clocks", " 1980 3201"},
        {"mem", " 150754820096 1000000000"}, {"ecc", " 1 1"}, {"pcie", " 5 16 5 16"},
        {"pci", " 233510DE 18BE10DE"}, {"module", " none"}, {"util", " 0 0"}, {"nvlink", " 18 18"},
        {"near", " 50"}, {"fabric", " 3 0xAA"}};
    for (unsigned i = 0; i < sizeof plain / sizeof *plain; i++) of_device(d, plain[i][0], plain[i][1]);
    return d;
}

static int same(const char *path, const struct stat *found) {
    return !strcmp(path, s.path) && found->st_ino == s.seen.st_ino &&
           found->st_size == s.seen.st_size && found->st_mtim.tv_sec == s.seen.st_mtim.tv_sec &&
           found->st_mtim.tv_nsec == s.seen.st_mtim.tv_nsec;
}

static void load_anew(const char *path, struct stat found) {
    FILE *file = fopen(path, "r");
    if (!file) return;
    s.n_devices = s.n_fails = s.n_latencies = s.forgotten = 0;
    memset(s.fails, 0, sizeof s.fails);
    s.shutdown = 1e18, s.cuda = 13000, s.t0 = 0;
    snprintf(s.driver, sizeof s.driver, "595.45.04");
    snprintf(s.path, sizeof s.path, "%s", path);
    s.seen = found;
    char line[1024], key[64];
    for (device_t *d = NULL; fgets(line, sizeof line, file);) {
        int used = 0;
        if (sscanf(line, "%63s%n", key, &used) != 1 || *key == '#') continue;
        if (!strcmp(key, "device")) d = s.n_devices < DEVICES ? new_device() : d;
        else if (d) of_device(d, key, line + used);
        else general(key, line + used);
    }
    fclose(file);
    for (int i = 0; i < s.n_devices; i++)
        for (int k = 0; k < INSTANCES; k++) {
            device_t *m = &instances[i][k];
            *m = devices[i];
            m->parent = &devices[i];
            m->number = 100 * (i + 1) + k;
            snprintf(m->uuid, sizeof m->uuid, "MIG-%d-%d", i, k);
            snprintf(m->name, sizeof m->name, "%.70s MIG 1g.18gb", devices[i].name);
        }
}

/* Read the scenario if it was replaced, and hold it as it is until done(). */
static void load(void) {
    const char *path = getenv("FAKE_NVML_SCENARIO");
    struct stat found;
    pthread_rwlock_rdlock(&scenario_lock);
    if (!path || stat(path, &found) || same(path, &found)) return;
    pthread_rwlock_unlock(&scenario_lock);
    pthread_rwlock_wrlock(&scenario_lock);
    if (!same(path, &found)) load_anew(path, found);
    pthread_rwlock_unlock(&scenario_lock);
    pthread_rwlock_rdlock(&scenario_lock);
}

/* ---- power ---- */

static double joules(const device_t *d, double t) {
    double e = 0;
    switch (d->wave) {
    case SQUARE: {
        double high = d->duty * d->period, n = floor(t / d->period), rest = t - n * d->period;
        return n * (d->b * high + d->a * (d->period - high)) + d->b * fmin(rest, high) +
               d->a * fmax(rest - high, 0);
    }
    case SINE:
        return d->a * t + d->b * d->period / (2 * M_PI) * (1 - cos(2 * M_PI * t / d->period));
    case STEPPED:
        if (t < d->step_at[0]) return d->step_w[0] * (t - d->step_at[0]);
        for (int i = 0; i < d->n_steps && d->step_at[i] < t; i++)
            e += d->step_w[i] * ((i + 1 < d->n_steps ? fmin(t, d->step_at[i + 1]) : t) - d->step_at[i]);
        return e;
    default:
        return d->a * t;
    }
}

static double mean(const device_t *d, double end, double window_s) {
    if (window_s <= 0) window_s = 1e-3;
    return (joules(d, end) - joules(d, end - window_s)) / window_s;
}

static unsigned instant(const device_t *d) {
    double t = now(), refresh = d->refresh / 1e3;
    if (refresh > 0) t = floor(t / refresh) * refresh;
    return lround(mean(d, t, d->window / 1e3) * 1e3);
}

static u64 millijoules(const device_t *d) {
    double t = now(), at = t - d->lag;
    if (d->quantum > 0) at = floor((t - d->phase) / d->quantum) * d->quantum + d->phase - d->lag;
    double counted = joules(d, at) + d->base;
    if (t >= d->reset) counted = fmax(joules(d, at) - joules(d, d->reset), 0);
    return llround(counted * 1e3);
}

static u64 active_ns(const device_t *d, unsigned mask) {
    double sum = 0, t = now();
    for (int i = 0; i < d->n_events; i++)
        if (d->events[i].mask & mask)
            sum += fmax(0, fmin(t, d->events[i].until) - fmax(0, d->events[i].after));
    return llround(sum * 1e9);
}

static unsigned reasons(const device_t *d, unsigned *sm) {
    unsigned mask = 0;
    double t = now();
    for (int i = 0; i < d->n_events; i++)
        if (t >= d->events[i].after && t < d->events[i].until) {
            mask |= d->events[i].mask;
            if (sm && d->events[i].sm) *sm = d->events[i].sm;
        }
    return mask;
}

double fake_joules(int device, double begin, double end) {
    load();
    double used = joules(&devices[device], end - s.t0) - joules(&devices[device], begin - s.t0);
    pthread_rwlock_unlock(&scenario_lock);
    return used;
}

/* ---- every call ---- */

static int matches(const char *rule, const char *function) {
    size_t n = strlen(rule);
    if (n && rule[n - 1] == '*') return !strncmp(rule, function, n - 1);
    return !strcmp(rule, function);
}

static int applies(fail_t *f, const char *function, int dev) {
    double t = now();
    if (!matches(f->function, function) || (f->dev >= 0 && f->dev != dev)) return 0;
    int calls = __atomic_add_fetch(&f->calls, 1, __ATOMIC_RELAXED);
    return calls >= f->from && calls <= f->to && t >= f->after && t < f->until &&
           calls % f->every == 0;
}

static int scripted(const char *function, int dev) {
    for (int i = 0; i < s.n_latencies; i++)
        if (matches(s.latencies[i].function, function) &&
            (s.latencies[i].dev < 0 || s.latencies[i].dev == dev)) {
            double until = monotonic() + s.latencies[i].us / 1e6;
            if (!s.latencies[i].spin) usleep(s.latencies[i].us);
            while (monotonic() < until) {}
        }
    for (int i = 0; i < s.n_fails; i++)
        if (!s.fails[i].shows && applies(&s.fails[i], function, dev)) return s.fails[i].code;
    return OK;
}

static u64 shown(const char *function, int dev, u64 value) {
    for (int i = 0; i < s.n_fails; i++)
        if (s.fails[i].shows && applies(&s.fails[i], function, dev)) return s.fails[i].value;
    return value;
}

static int done(const char *function, int dev, int code) {
    static int log = -1;
    static char known[512];
    const char *path = getenv("FAKE_NVML_LOG");
    pthread_rwlock_unlock(&scenario_lock);
    pthread_mutex_lock(&log_lock);
    if (strcmp(known, path ? path : "")) {
        if (log >= 0) close(log);
        snprintf(known, sizeof known, "%s", path ? path : "");
        log = path ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644) : -1;
    }
    if (log >= 0) {
        char line[160];
        int n = snprintf(line, sizeof line, "%lld %ld %s %d %d\n", (long long)(monotonic() * 1e9),
                         (long)syscall(SYS_gettid), function, dev, code);
        if (write(log, line, n) != n) log = -1;
    }
    pthread_mutex_unlock(&log_lock);
    return code;
}

static int begin(const char *function, int dev) {
    load();
    if (now() >= s.shutdown && !__atomic_exchange_n(&s.forgotten, 1, __ATOMIC_SEQ_CST))
        s.initialised = 0;
    int code = scripted(function, dev);
    return code ? code : s.initialised > 0 ? OK : UNINITIALIZED;
}

#define START(dev) \
    do { int code_ = begin(__func__, dev); if (code_) return done(__func__, dev, code_); } while (0)
#define SHOWN(expression) shown(__func__, d->number, expression)
#define RETURN(dev, code) return done(__func__, dev, code)
#define READ(name, type, expression) \
    int name(device_t *d, type *out) { START(d->number); *out = SHOWN(expression); RETURN(d->number, OK); }
#define READ_IF(name, type, has, expression) \
    int name(device_t *d, type *out) { \
        START(d->number); \
        if (!(has)) RETURN(d->number, NOT_SUPPORTED); \
        *out = SHOWN(expression); \
        RETURN(d->number, OK); \
    }
#define TEXT(name, expression) \
    int name(device_t *d, char *out, unsigned n) { \
        START(d->number); \
        snprintf(out, n, "%s", expression); \
        RETURN(d->number, OK); \
    }
#define SETTER(name) int name(void) { START(-1); RETURN(-1, OK); }
#include "setters.inc"

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    load();
    int code = scripted(__func__, -1);
    if (!code) s.initialised++;
    RETURN(-1, code);
}
int nvmlShutdown(void) { START(-1); s.initialised--; RETURN(-1, OK); }
const char *nvmlErrorString(int code) { (void)code; return "an error of the fake library"; }
int nvmlSystemGetDriverVersion(char *out, unsigned n) {
    START(-1);
    snprintf(out, n, "%s", s.driver);
    RETURN(-1, OK);
}
int nvmlSystemGetCudaDriverVersion_v2(int *out) { START(-1); *out = s.cuda; RETURN(-1, OK); }
int nvmlDeviceGetCount_v2(unsigned *out) { START(-1); *out = shown(__func__, -1, s.n_devices); RETURN(-1, OK); }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, device_t **out) {
    START(-1);
    if ((int)index >= s.n_devices) RETURN(-1, INVALID);
    *out = &devices[index];
    RETURN(-1, OK);
}
int nvmlDeviceGetHandleByUUID(const char *uuid, device_t **out) {
    START(-1);
    for (int i = 0; i < s.n_devices; i++) {
        if (!strcmp(devices[i].uuid, uuid)) { *out = &devices[i]; RETURN(-1, OK); }
        for (int k = 0; k < devices[i].mig; k++)
            if (!strcmp(instances[i][k].uuid, uuid)) { *out = &instances[i][k]; RETURN(-1, OK); }
    }
    RETURN(-1, NOT_FOUND);
}

/* ---- identity ---- */

TEXT(nvmlDeviceGetName, d->name)
TEXT(nvmlDeviceGetUUID, d->uuid)
TEXT(nvmlDeviceGetVbiosVersion, d->vbios)
READ(nvmlDeviceGetArchitecture, unsigned, d->arch)
READ(nvmlDeviceGetPersistenceMode, unsigned, 1)
READ(nvmlDeviceGetComputeMode, unsigned, 0)
READ(nvmlDeviceGetVirtualizationMode, unsigned, d->virtualization)
/* What was set is kept beside the scenario, so that every process sees it. */
static const char *limit_file(const device_t *d) {
    static __thread char path[600];
    snprintf(path, sizeof path, "%s.limit.%d", s.path, d->number);
    return path;
}
static unsigned managed_mw(const device_t *d) {
    unsigned mw = lround((now() >= d->limit_at ? d->limit_later : d->limit) * 1e3);
    FILE *file = now() < d->limit_at ? fopen(limit_file(d), "r") : NULL;
    if (file && fscanf(file, "%u", &mw) != 1) mw = 0;
    if (file) fclose(file);
    return mw;
}
READ_IF(nvmlDeviceGetPowerManagementLimit, unsigned, !d->parent, managed_mw(d))
READ(nvmlDeviceGetEnforcedPowerLimit, unsigned, fmin(managed_mw(d), d->limit_enforced * 1e3))
int nvmlDeviceSetPowerManagementLimit(device_t *d, unsigned mw) {
    START(d->number);
    if (d->parent) RETURN(d->number, NOT_SUPPORTED);
    if (mw < d->limit_min * 1e3 || mw > d->limit_max * 1e3) RETURN(d->number, INVALID);
    char draft[640];
    snprintf(draft, sizeof draft, "%s.%ld", limit_file(d), (long)syscall(SYS_gettid));
    FILE *file = fopen(draft, "w");
    if (!file) RETURN(d->number, 999);
    fprintf(file, "%u", mw), fclose(file);
    RETURN(d->number, rename(draft, limit_file(d)) ? 999 : OK);
}
READ(nvmlDeviceGetPowerManagementDefaultLimit, unsigned, lround(d->limit_default * 1e3))
int nvmlDeviceGetPciInfo_v3(device_t *d, pci_t *out) {
    START(d->number);
    memset(out, 0, sizeof *out);
    out->bus = d->number + 1, out->id = d->pci_device, out->subsystem = d->pci_subsystem;
    snprintf(out->bus_id, sizeof out->bus_id, "00000000:%02X:00.0", out->bus);
    RETURN(d->number, OK);
}
int nvmlDeviceGetPowerManagementLimitConstraints(device_t *d, unsigned *low, unsigned *high) {
    START(d->number);
    *low = SHOWN(lround(d->limit_min * 1e3)), *high = SHOWN(lround(d->limit_max * 1e3));
    RETURN(d->number, OK);
}
int nvmlDeviceGetEccMode(device_t *d, unsigned *current, unsigned *pending) {
    START(d->number);
    if (!d->has_ecc) RETURN(d->number, NOT_SUPPORTED);
    *current = SHOWN(d->ecc), *pending = SHOWN(d->ecc_pending);
    RETURN(d->number, OK);
}
int nvmlDeviceGetMigMode(device_t *d, unsigned *current, unsigned *pending) {
    START(d->number);
    if (d->mig < 0) RETURN(d->number, NOT_SUPPORTED);
    *current = d->mig > 0, *pending = d->mig_pending;
    RETURN(d->number, OK);
}
int nvmlDeviceGetGspFirmwareVersion(device_t *d, char *out) {
    START(d->number);
    if (!*d->gsp) RETURN(d->number, NOT_SUPPORTED);
    strcpy(out, d->gsp);
    RETURN(d->number, OK);
}
static int link_is_up(const device_t *d, unsigned link) {
    return link < d->links_up && !((int)link == d->link_fell && now() >= d->link_at);
}
int nvmlDeviceGetNvLinkState(device_t *d, unsigned link, unsigned *out) {
    START(d->number);
    if (!d->links) RETURN(d->number, NOT_SUPPORTED);
    if (link >= d->links) RETURN(d->number, INVALID);
    *out = link_is_up(d, link);
    RETURN(d->number, OK);
}
int nvmlDeviceGetNvLinkRemoteDeviceType(device_t *d, unsigned link, unsigned *out) {
    START(d->number);
    if (!link_is_up(d, link)) RETURN(d->number, INVALID);
    *out = d->links_to < 0 ? 2 : 0;
    RETURN(d->number, OK);
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(device_t *d, unsigned link, pci_t *out) {
    START(d->number);
    if (!link_is_up(d, link)) RETURN(d->number, INVALID);
    memset(out, 0, sizeof *out);
    snprintf(out->bus_id, sizeof out->bus_id, "00000000:%02X:00.0", d->links_to < 0 ? 0xE0 : d->links_to + 1);
    RETURN(d->number, OK);
}
static u64 link_errors(const device_t *d, unsigned counter, unsigned link) {
    u64 count = 0;
    for (int i = 0; i < d->n_linkerrors; i++) {
        const linkerror_t *e = &d->linkerrors[i];
        if (e->counter == counter && e->link == link && now() >= e->after) count += e->count;
    }
    return count;
}
int nvmlDeviceGetNvLinkErrorCounter(device_t *d, unsigned link, unsigned counter, u64 *out) {
    START(d->number);
    if (link >= d->links || counter > 3) RETURN(d->number, INVALID);
    if (d->arch >= 10) RETURN(d->number, NOT_SUPPORTED);
    *out = SHOWN(link_errors(d, counter, link));
    RETURN(d->number, OK);
}
int nvmlDeviceGetGpuFabricInfoV(device_t *d, fabric_t *out) {
    START(d->number);
    if (out->version != (2u << 24 | sizeof *out)) RETURN(d->number, INVALID);
    out->status = 0, out->clique = 0, out->state = d->fabric_state;
    out->health = now() >= d->fabric_at ? d->fabric_later : d->fabric_health;
    RETURN(d->number, OK);
}
int nvmlDeviceGetTopologyCommonAncestor(device_t *d, device_t *other, unsigned *out) {
    START(d->number);
    *out = d->near > other->near ? d->near : other->near;
    RETURN(d->number, OK);
}
int nvmlDeviceGetP2PStatus(device_t *d, device_t *other, unsigned index, unsigned *out) {
    START(d->number);
    if (index > 4) RETURN(d->number, INVALID);
    *out = d->p2p ? d->p2p : other->p2p;
    RETURN(d->number, OK);
}
READ(nvmlDeviceGetIndex, unsigned, d->number)
READ(nvmlDeviceGetGpuInstanceId, unsigned, d->number % 100 + 1)
READ(nvmlDeviceGetComputeInstanceId, unsigned, 0)
READ(nvmlDeviceGetMaxMigDeviceCount, unsigned, d->mig > 0 ? INSTANCES : 0)
READ(nvmlDeviceIsMigDeviceHandle, unsigned, d->parent != NULL)
int nvmlDeviceGetMigDeviceHandleByIndex(device_t *d, unsigned index, device_t **out) {
    START(d->number);
    if ((int)index >= d->mig) RETURN(d->number, NOT_FOUND);
    *out = &instances[d->number][index];
    RETURN(d->number, OK);
}
int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device_t *d, device_t **out) {
    START(d->number);
    if (!d->parent) RETURN(d->number, INVALID);
    *out = d->parent;
    RETURN(d->number, OK);
}

/* ---- power and energy; a MIG instance has none of its own ---- */

READ_IF(nvmlDeviceGetPowerUsage, unsigned, d->has_average && !d->parent,
        d->arch >= 7 ? lround(mean(d, now(), 1.0) * 1e3) : instant(d))
READ_IF(nvmlDeviceGetTotalEnergyConsumption, u64,
        d->has_energy && (!d->parent || d->mig_energy), millijoules(d))

/* What is told of NVLink 4 (arch 9) and 5 (later); earlier boards have a function for errors alone. */
static int link_field(device_t *d, field_t *f) {
    static const struct { unsigned sent, received, crc, replay, recovery; double unit; }
        generations[] = {{138, 139, 163, 161, 162, 1024}, {202, 204, 208, 206, 215, 1}};
    if (!d->links || d->arch < 9) return 0;
    unsigned scope = f->scope, n = f->field, later = d->arch > 9;
    double rate = n == generations[later].sent ? d->link_sent : d->link_received;
    f->type = 3;
    if (scope == 0xFFFFFFFF && (n == generations[later].sent || n == generations[later].received))
        f->value.ull = (1e12 + rate * now()) / generations[later].unit;
    else if (scope >= d->links) return 0;
    else if (n == generations[later].crc) f->value.ull = link_errors(d, 2, scope) + link_errors(d, 3, scope);
    else if (n == generations[later].replay) f->value.ull = link_errors(d, 0, scope);
    else if (n == generations[later].recovery) f->value.ull = link_errors(d, 1, scope);
    else return 0;
    return 1;
}

static int field(device_t *d, field_t *f) {
    static const unsigned masks[] = {0x4, 0x20, 0x10, 0x200, 0x1, 0x400};
    static const unsigned later[] = {0x20, 0x40, 0x80};
    int major = atoi(s.driver), minor = strchr(s.driver, 0x2e) ? atoi(strchr(s.driver, 0x2e) + 1) : 0;
    int first = major < 580 || (major == 580 && minor < 82) ? 251 : 269;
    char name[48];
    snprintf(name, sizeof name, "field:%u:%u", f->field, f->scope);
    int code = scripted(name, d->number);
    *strrchr(name, ':') = 0;
    if (!code) code = scripted(name, d->number);
    if (code) return code;
    int allowed = f->scope == 0 ? !d->only_module : f->scope == 1 && (d->has_module || d->only_module);
    f->type = 1;
    if (link_field(d, f)) { f->value.ull = shown(name, d->number, f->value.ull); return OK; }
    if (d->parent || !allowed) return NOT_SUPPORTED;
    if (f->field == 186 && d->has_instant) f->value.u = instant(d);
    else if (f->field == 185 && d->has_average && d->arch >= 7) f->value.u = lround(mean(d, now(), 1) * 1e3);
    else if (f->field == 82 && d->memory_temp > 0) f->value.u = lround(d->memory_temp);
    else {
        f->type = 3;
        if ((f->field == 83 || f->field == 191) && d->has_energy) f->value.ull = millijoules(d);
        else if (f->field >= 74 && f->field <= 79 && d->has_counters)
            f->value.ull = active_ns(d, masks[f->field - 74]);
        else if ((int)f->field >= first && (int)f->field <= first + 2 && d->has_counters)
            f->value.ull = active_ns(d, later[f->field - first]);
        else return NOT_SUPPORTED;
    }
    f->value.ull = shown(name, d->number, f->value.ull);
    return OK;
}

int nvmlDeviceGetFieldValues(device_t *d, int n, field_t *fields) {
    START(d->number);
    for (int i = 0; i < n; i++) {
        fields[i].timestamp = 0, fields[i].latency = 0, fields[i].value.ull = 0;
        fields[i].ret = field(d, &fields[i]);
    }
    RETURN(d->number, OK);
}
int nvmlDeviceGetViolationStatus(device_t *d, unsigned policy, violation_t *out) {
    static const unsigned masks[] = {0x4, 0x60, 0x10, 0x200, 0x1, 0x400};
    START(d->number);
    if (policy > 5) RETURN(d->number, INVALID);
    out->reference = llround(now() * 1e6);
    out->violation = SHOWN(active_ns(d, masks[policy]));
    RETURN(d->number, OK);
}

/* ---- state ---- */

READ(nvmlDeviceGetCurrentClocksEventReasons, u64, reasons(d, NULL))
READ(nvmlDeviceGetCurrentClocksThrottleReasons, u64, reasons(d, NULL))
READ(nvmlDeviceGetPerformanceState, unsigned, d->pstate)
READ(nvmlDeviceGetCurrPcieLinkGeneration, unsigned, d->pcie[0])
READ(nvmlDeviceGetCurrPcieLinkWidth, unsigned, now() >= d->width_at ? d->width_later : d->pcie[1])
READ(nvmlDeviceGetMaxPcieLinkGeneration, unsigned, d->pcie[2])
READ(nvmlDeviceGetMaxPcieLinkWidth, unsigned, d->pcie[3])
READ(nvmlDeviceGetPcieReplayCounter, unsigned, now() >= d->replay_after ? d->replay : 0)

int nvmlDeviceGetClockInfo(device_t *d, unsigned type, unsigned *out) {
    START(d->number);
    unsigned sm = d->sm;
    reasons(d, &sm);
    *out = SHOWN(type == 2 ? d->mem_clock : sm);
    RETURN(d->number, OK);
}
int nvmlDeviceGetApplicationsClock(device_t *d, unsigned type, unsigned *out) {
    START(d->number);
    if (type != 1 || !d->application[0]) RETURN(d->number, NOT_SUPPORTED);
    *out = SHOWN(d->application[0]);
    RETURN(d->number, OK);
}
int nvmlDeviceGetDefaultApplicationsClock(device_t *d, unsigned type, unsigned *out) {
    START(d->number);
    if (type != 1 || !d->application[1]) RETURN(d->number, NOT_SUPPORTED);
    *out = SHOWN(d->application[1]);
    RETURN(d->number, OK);
}
int nvmlDeviceGetMaxClockInfo(device_t *d, unsigned type, unsigned *out) {
    START(d->number);
    *out = SHOWN(type == 2 ? d->mem_clock : d->sm);
    RETURN(d->number, OK);
}
int nvmlDeviceGetTemperatureV(device_t *d, temperature_t *out) {
    START(d->number);
    if (out->version != 0x100000C || out->sensor) RETURN(d->number, INVALID);
    out->temperature = SHOWN(lround(d->temp + d->rise * now()));
    RETURN(d->number, OK);
}
int nvmlDeviceGetTemperature(device_t *d, unsigned sensor, unsigned *out) {
    START(d->number);
    if (sensor) RETURN(d->number, INVALID);
    *out = SHOWN(lround(d->temp + d->rise * now()));
    RETURN(d->number, OK);
}
int nvmlDeviceGetTemperatureThreshold(device_t *d, unsigned kind, unsigned *out) {
    START(d->number);
    if (kind != 1) RETURN(d->number, NOT_SUPPORTED);
    *out = SHOWN(lround(d->slowdown_temp));
    RETURN(d->number, OK);
}
static u64 memory_used(const device_t *d) {
    double t = now();
    return d->mem_used + (d->mem_after <= t && t < d->mem_until ? d->mem_more : 0);
}
int nvmlDeviceGetMemoryInfo(device_t *d, memory_t *out) {
    START(d->number);
    out->total = d->mem_total, out->used = SHOWN(memory_used(d) + 512000000), out->free = out->total - out->used;
    RETURN(d->number, OK);
}
int nvmlDeviceGetMemoryInfo_v2(device_t *d, memory_v2_t *out) {
    START(d->number);
    if (out->version != (2u << 24 | sizeof *out)) RETURN(d->number, INVALID);
    out->total = d->mem_total, out->used = SHOWN(memory_used(d)), out->reserved = 512000000;
    out->free = out->total - out->used - out->reserved;
    RETURN(d->number, OK);
}
static unsigned utilization(const device_t *d) {
    double t = now();
    if (d->util_steps > 0) t = floor(t / d->util_steps) * d->util_steps; /* shown until the next */
    double from = t - d->util_mean;
    if (d->util_mean <= 0) return t >= d->util_after && t < d->util_until ? d->util_gpu : 0;
    double busy = fmin(t, d->util_until) - fmax(from, d->util_after);
    return lround(d->util_gpu * fmax(busy, 0) / d->util_mean);
}

int nvmlDeviceGetUtilizationRates(device_t *d, utilization_t *out) {
    START(d->number);
    if (d->mig > 0) RETURN(d->number, NOT_SUPPORTED);
    out->gpu = SHOWN(utilization(d)), out->memory = d->util_mem;
    RETURN(d->number, OK);
}

/* ---- events: a set tells, once each, the XIDs of its devices since they were registered ---- */

typedef struct { device_t *devices[DEVICES]; double told[DEVICES]; int n; } set_t;
static set_t sets[SETS];
static int n_sets;

int nvmlEventSetCreate(set_t **out) {
    START(-1);
    if (n_sets == SETS) RETURN(-1, INVALID);
    *out = &sets[n_sets++];
    RETURN(-1, OK);
}
int nvmlDeviceRegisterEvents(device_t *d, u64 types, set_t *set) {
    START(d->number);
    if (types != 8 || set->n == DEVICES) RETURN(d->number, NOT_SUPPORTED);
    set->devices[set->n] = d, set->told[set->n++] = monotonic();
    RETURN(d->number, OK);
}
int nvmlEventSetWait_v2(set_t *set, event_data_t *out, unsigned ms) {
    (void)ms;
    int dev = set->n ? set->devices[0]->number : -1;
    START(dev);
    for (int i = 0; i < set->n; i++)
        for (int k = 0; k < set->devices[i]->n_xids; k++) {
            xid_t *x = &set->devices[i]->xids[k];
            if (x->at > now() || x->at + s.t0 <= set->told[i]) continue;
            set->told[i] = x->at + s.t0;
            *out = (event_data_t){.device = set->devices[i], .type = 8, .data = x->number};
            out->data = shown(__func__, dev, out->data);
            RETURN(dev, OK);
        }
    RETURN(dev, TIMEOUT);
}
int nvmlEventSetFree(set_t *set) { set->n = 0; START(-1); RETURN(-1, OK); }
int nvmlDeviceGetTotalEccErrors(device_t *d, unsigned type, unsigned counter, u64 *out) {
    START(d->number);
    if (!d->has_ecc) RETURN(d->number, NOT_SUPPORTED);
    *out = SHOWN(counter || now() < d->ecc_after ? 0 : type == 1 ? d->uncorrected : d->corrected);
    RETURN(d->number, OK);
}
int nvmlDeviceGetRemappedRows(device_t *d, unsigned *c, unsigned *u, unsigned *pending, unsigned *failed) {
    START(d->number);
    *c = *u = *failed = 0, *pending = d->remapped;
    RETURN(d->number, OK);
}
int nvmlDeviceGetAttributes_v2(device_t *d, attributes_t *out) {
    START(d->number);
    if (!d->parent) RETURN(d->number, NOT_SUPPORTED);
    memset(out, 0, sizeof *out);
    out->counts[6] = 1, out->memory_mb = 18432;
    RETURN(d->number, OK);
}

static int processes(const char *function, device_t *d, unsigned *n, process_t *out, int here) {
    int code = begin(function, d->number);
    if (code) return done(function, d->number, code);
    unsigned found = 0, room = *n;
    double t = now();
    for (int i = 0; here && i < d->n_procs; i++) {
        const proc_t *p = &d->procs[i];
        if (t < p->after || t >= p->until) continue;
        if (found < room && out)
            out[found] = (process_t){.pid = p->pid, .used = shown(function, d->number, p->bytes), .gi = ~0u, .ci = ~0u};
        found++;
    }
    *n = found;
    return done(function, d->number, found > room ? TOO_SMALL : OK);
}
#define PROCESSES(name, here) \
    int name(device_t *d, unsigned *n, process_t *out) { return processes(#name, d, n, out, here); }
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, 1)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3, 0)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3, 0)

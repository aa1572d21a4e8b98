"""What a suite can `use`: engines, data sets, scorers and checkpoint builders."""

"""The tuned constants of the rule, each with its reason; docs/gate-measured.md has the recordings behind them.

Noise, shifts and delays are in logs; shares and probabilities are fractions of 1.
"""

from __future__ import annotations

# --- Sizes of a change --------------------------------------------------------------------------------------------
TOLERANCE = 0.05
"""Default tolerance: the relative change that a pass excludes."""
CALLED = 0.4
"""Fraction of the tolerance from which on an estimate is called a change: twice the margin."""
MARGIN = 0.2
"""Fraction of the tolerance that layout or import order may cause; a change must significantly exceed it."""
FLOOR_NS = 300.0
"""Change of a timed sample that is too small to matter: a few clock reads."""
FLOOR_BYTES = 2.0**20
"""The same for a value in bytes."""

# --- Levels and interim looks -------------------------------------------------------------------------------------
FULL_LOOKS = (5, 10, 15, 20)
QUICK_LOOKS = (5, 8, 12)
"""Rounds after which launches are analyzed: five settle clear cases, and each further look costs alpha."""
SUITE_LEVEL = 0.05
"""Probability of a false regression over the whole suite (Holm)."""
BENCHMARK_LEVEL = 0.025
"""Upper limit for a single benchmark, however small the suite."""
PASS_SHARE = 0.5
"""Fraction of the level spent on a pass: a change that passes is not measured again."""
IMPROVEMENT_SHARE = 0.5
"""Fraction of the level spent on an improvement: a false one hides a slowdown, a missed one hides nothing."""
FIRST_LOOK_SHARE = 0.5
"""Fraction of a pass's alpha spent at the first look: most unchanged code should not need a second."""
LAST_LOOK, LAST_LOOK_ADJUSTED, LAST_LOOK_LONG = 2.5, 3.5, 4.0
"""Factors on the level at the last look: up to ten rounds, the same if the canary explains the launches, and after
twenty. Chosen on a recording; 4.0 for the second gave 3.4 % red pull requests on a busy Xeon, 3.5 gives 2.2 %."""
SHORT_RUN = 0.5
"""The same factor for fewer rounds than the first look: three or four launches are too few for leniency."""
LISTED = 0.1
"""Expected share of false positives among the slowdowns that a comment lists (Benjamini and Hochberg)."""

# --- Choosing launches --------------------------------------------------------------------------------------------
MIN_LAUNCHES = 3
"""Undisturbed launches per side needed for any decision: fewer do not show their scatter."""
CPU_BOUND = (0.97, 1.05)
"""Range of CPU time over wall time of undisturbed samples for CPU-bound code; the two clocks differ slightly."""
KEPT_CORE = 0.97
"""Fraction of the usual CPU share below which a launch with context switches was pushed off its core."""
SLOW = 1.15
"""Multiple of the canary's usual time from which on a launch was in a slow spell of the machine."""
VERY_SLOW = 1.25
"""Multiple from which on a launch is dropped if enough others remain."""

# --- The noise model ----------------------------------------------------------------------------------------------
PRIOR_NOISE = 0.02
"""Expected launch noise of a benchmark without a history, and of the canary."""
LOW_SHARE = 0.5
"""Fraction of a side's launches, the lowest ones, that center the grid of levels and give the side's quoted value."""
NOISE_SCALES = (0.003, 0.005, 0.008, 0.0125, 0.02, 0.032, 0.05, 0.08, 0.13, 0.22, 0.4)
"""Grid of tau, in steps of about a factor of 1.6: launches of identical code differed by 0.8 to 30 % on recordings."""
DELAYED_SHARES = (0.05, 0.35)
"""Shares of delayed launches. Larger ones (0.5 to 0.7) made more false alarms without a canary, not fewer."""
DELAYS = (0.04, 0.15, 0.5)
"""Mean delays, from an interruption to another process on the same core that makes code take 1.5 times as long."""
STRAY_SHARE, STRAY_SCALE = 0.05, 3.0
"""Share and relative width of a wider normal component: a launch may also be fast by luck."""
PRIOR_WIDTH = 0.9
"""Standard deviation of the prior of log tau: a factor of two and a half either way."""
FLAT_PRIOR = 0.05
"""Fraction of the prior that weights every tau equally: some machines are that noisy."""
SESSIONS = 8
"""Number of newest sessions used from a history: machines and their load change."""
SESSION_WEIGHT = 0.5
"""Weight of a launch from an earlier session: sessions differ."""
OTHER_NOISE = 0.4
"""Probability that today's noise differs from earlier sessions: a busier machine, different code."""

# --- Covariate adjustment -----------------------------------------------------------------------------------------
CANARY_SLOPES = {0.0: 0.1, 0.4: 0.15, 0.7: 0.25, 0.9: 0.25, 1.1: 0.25}
"""Fraction of the canary's slowdown that a benchmark shares -> prior probability; 0 must come first. Memory-bound code
depends little on the clock."""
ROUND_EFFECT = 0.3
"""Prior probability that the launches of a round share an effect. 0.2 and 0.4 hardly differed on recordings; if
simulated launches share nothing, 0.4 gives 2.5 % errors and 0.2 gives 1.5 %."""
ROUND_SHRINKAGE = 0.5
"""Fraction of the round effect that is subtracted: optimal if the launches of a round have a correlation of 0.6."""

# --- Alternative explanations -------------------------------------------------------------------------------------
SLOW_STATES, STATE_CORRELATION = 0.5, 0.7
"""Prior probability of slow states of one side, and their lag-one correlation: five launches reveal very little."""
WINSORISED = 4.5
"""Median absolute deviations at which outliers are winsorized before correlations are computed."""
BIMODAL = 0.1
"""Share of benchmarks that run at two speeds. One in twenty was too few on a Xeon with shared cores (0.98 % false
alarms instead of 0.59 %, together with `SPELL_FACTOR`)."""

# --- Guards -------------------------------------------------------------------------------------------------------
CONSIDERED = 0.2
"""P-value above which nothing is called a change, so alternative explanations need not be computed."""
PAIRED_ROUNDS, PAIRED_LEVEL = 7, 0.05
"""Rounds from which on the sides must also differ round by round, and the level of Wilcoxon's test: with five rounds
every one would have to agree."""
CONTRADICTED = 0.05
"""Probability of a change in another quantity below which that quantity contradicts it."""
CANARY_MOVED = 0.5
"""The canary explains a change if it moved in the same direction by at least this fraction of it."""
DRIFT_ERRORS = 2.0
"""Standard errors of the slope by which a drift between two sides run in sequence may have gone unnoticed."""
UNKNOWN_INTERRUPTIONS = 1.25
"""Factor on the p-value of a change in wall time if neither CPU time nor context switches are known."""
SPELL_FACTOR = 5.0
"""Factor on every p-value if all launches were in slow spells of the machine that the canary does not explain."""
SPELL_NOISE = (0.015, 0.04)
"""Launch noise up to which the canary fully explains the spells, and from which on not at all."""

# --- The session --------------------------------------------------------------------------------------------------
SESSION_BENCHMARKS = 4
"""Minimum number of benchmarks for a session to be invalid: fewer may really have changed together."""
SESSION_AGREES, SESSION_WITHIN = 0.6, 0.5
"""Share of the benchmarks that must lie within this fraction of the median shift for the machine to have moved."""
SESSION_CANARY = 0.4
"""The canary must have moved in the same direction by at least this fraction of the median shift."""

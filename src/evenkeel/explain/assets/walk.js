// From the numbers of each step to an explanation: title, formula, the formula with the numbers of one group, meaning.
// The result has the shape of Python's Explanation.to_dict().
(function () {
  "use strict";
  const { prepare, forward, backward, nest, plainNumber } = window.evenkeel.arithmetic;
  const { steps, telling, viewOf, from, notes, words } = window.evenkeel;

  function valueOf({ shape }, value, p) {
    if (shape === "elements") return nest(value, p.shape);
    if (shape === "parameters") return nest(value, p.parameterShape);
    return shape === "differences" ? value.map((row) => row.map(plainNumber)) : value.map(plainNumber);
  }

  function tellSteps(p, v, view) {
    const present = Object.entries(steps).filter(([id]) => v[id] !== undefined);
    return present.map(([id, step]) => ({
      id, title: step.title, formula: view.tell(step.formula), substituted: view.tell(step.numbers),
      value: valueOf(step, v[id], p), meaning: view.tell(step.meaning),
    }));
  }

  const SMALL = 1e-9;
  const FINITE = 1e-6;
  const TINY = 2.2250738585072014e-308;
  const largest = (values) => values.reduce((most, value) => Math.max(most, Math.abs(value)), 0);

  function check(id, value, expected, passed, facts) {
    const { title, note } = words.checks[id];
    return { id, title, value, expected, passed, note: telling.tell(note, from(facts)) };
  }

  // In every finite group the measured number is the expected one; one group is shown.
  function near(id, value, expected, fine, p) {
    const error = Math.max(...value.map((a, g) => (fine[g] ? Math.abs(a - expected[g]) : 0)));
    const at = fine[p.shown] ? p.shown : fine.indexOf(true);
    return check(id, value[at], expected[at], error <= SMALL, { error, compared: fine.filter(Boolean).length, tolerance: SMALL });
  }

  // What has to hold if the steps are right. (Only Python can also compare with the library's own functions.)
  function forwardChecks(p, v) {
    const { family } = p.row;
    if ((family !== "moments" && family !== "rms") || p.givenMean) return [];
    const mean = (values) => values.reduce((a, b) => a + b, 0) / Math.max(1, values.length);
    const hats = p.members.map((members) => members.map((i) => v.normalized[i]));
    const fine = hats.map((values, g) => values.length > 0 && values.every(Number.isFinite) && Number.isFinite(v.denominator[g]));
    if (!fine.includes(true)) return [];
    if (family === "rms") {
      const size = hats.map((values) => Math.sqrt(mean(values.map((a) => a * a))));
      return [near("rms_one", size, v.rms.map((r, g) => r / v.denominator[g]), fine, p)];
    }
    const means = hats.map(mean);
    const spread = hats.map((values, g) => Math.sqrt(mean(values.map((a) => (a - means[g]) ** 2))));
    return [
      near("mean_zero", means, means.map(() => 0), fine, p),
      near("std_one", spread, v.std.map((s, g) => s / v.denominator[g]), fine, p),
    ];
  }

  // Whether the shown group's function has one slope there: not at a constant or at shared ends.
  function smooth(p, v) {
    const g = p.shown;
    if (p.row.family === "minmax") {
      const times = (end) => p.members[g].filter((i) => p.x[i] === end[g]).length;
      return times(v.minimum) === 1 && times(v.maximum) === 1 && v.range[g] > 0 && Number.isFinite(v.range[g]);
    }
    const spread = (v.std || v.rms || [])[g];
    return spread === undefined || p.givenMean !== null || (p.eps > 0 && p.mode === "inside") || spread !== 0;
  }

  // The removed directions are gone; along x̂ with ε inside it is a known part that stays.
  function goneChecks(p, v) {
    if (!v.projected || !v.projected.every(Number.isFinite)) return [];
    const mean = (g, of) => p.members[g].reduce((sum, i) => sum + of(i), 0) / Math.max(1, p.n[g]);
    const size = p.members.map((members) => Math.max(largest(members.map((i) => v.g_hat[i])), TINY));
    const one = size.map((most, g) => mean(g, (i) => v.projected[i]) / most);
    const along = size.map((most, g) => {
      const removed = mean(g, (i) => v.normalized[i] ** 2) * v.factor[g];
      return (mean(g, (i) => v.projected[i] * v.normalized[i]) - v.mean_g_xhat[g] * (1 - removed)) / most;
    });
    const gone = (id, left) => check(id, left[p.shown], 0, largest(left) <= SMALL, { tolerance: SMALL });
    return p.row.family === "rms" ? [gone("dx_xhat", along)] : [gone("dx_one", one), gone("dx_xhat", along)];
  }

  function differenceCheck(p, v) {
    const rows = v.finite_difference.filter((row) => row.every(Number.isFinite));
    if (!rows.length || !smooth(p, v)) return [];
    const d = (i) => (v.denominator ? v.denominator[p.groups[i]] * p.unitScale : 1 / p.alpha);
    const sizes = v.g_hat.map((a, i) => (p.groups[i] < 0 ? 0 : Math.abs(a / d(i)))).filter(Number.isFinite);
    const error = largest(rows.map((row) => row[1] - row[2])) / Math.max(largest(sizes), TINY);
    return [check("finite_difference", error, 0, error <= FINITE, { compared: rows.length, tolerance: FINITE })];
  }

  function walk(config) {
    const p = prepare(config);
    const v = forward(p);
    if (config.options.backward) backward(p, v);
    const view = viewOf(p, v);
    return {
      norm: config.norm, title: view.tell(words.phrases.title), options: config.options, shown: p.shown, steps: tellSteps(p, v, view),
      checks: [...forwardChecks(p, v), ...(v.finite_difference ? [...goneChecks(p, v), ...differenceCheck(p, v)] : [])],
      notes: notes(p, v, view),
    };
  }

  window.evenkeel.walk = walk;
})();

// From the numbers of each step to an explanation: title, formula, the formula with the numbers of one group, meaning.
// The result has the shape of Python's Explanation.to_dict().
(function () {
  "use strict";
  const { prepare, forward, backward, nest, plainNumber, product } = window.evenkeel.arithmetic;
  const { format } = window.evenkeel.draw;
  // In the order of Python's steps.
  const ELEMENTS = new Set([
    "input", "groups", "unit", "centred", "stretched", "normalized", "scaled", "output", "upstream", "g_hat", "projected", "slope", "dx",
  ]);
  const PARAMETERS = new Set(["dweight", "dbias"]);
  const ORDER = [
    "input", "groups", "unit", "minimum", "maximum", "range", "mean", "centred", "mean_square", "rms", "variance", "sample_variance",
    "std", "sample_std", "denominator", "stretched", "eps_effect", "normalized", "scaled", "output",
    "upstream", "g_hat", "mean_g", "mean_g_xhat", "share_one", "share_xhat", "share_kept", "projected",
    "sum_at_max", "sum_at_min", "slope", "dx", "dalpha", "dweight", "dbias", "finite_difference",
  ];
  const WHOLE = 6;
  const R = String.raw;

  // Python's %.{digits}g: scientific below 1e-4 and from 10^digits on, without trailing zeros.
  function general(value, digits = 6) {
    if (Number.isNaN(value)) return "nan";
    if (!Number.isFinite(value)) return value > 0 ? "inf" : "-inf";
    if (value === 0) return Object.is(value, -0) ? "-0" : "0";
    const [mantissa, power] = value.toExponential(digits - 1).split("e");
    const exponent = Number(power);
    const strip = (text) => (text.includes(".") ? text.replace(/\.?0+$/, "") : text);
    if (exponent >= -4 && exponent < digits) return strip(value.toFixed(digits - 1 - exponent));
    const size = String(Math.abs(exponent)).padStart(2, "0");
    return `${strip(mantissa)}e${exponent < 0 ? "-" : "+"}${size}`;
  }

  function tex(value) {
    if (Number.isNaN(value)) return R`\text{NaN}`;
    if (!Number.isFinite(value)) return value > 0 ? R`\infty` : R`-\infty`;
    const text = general(value);
    if (!text.includes("e")) return text === "-0" ? "0" : text;
    const [mantissa, exponent] = text.split("e");
    const power = `10^{${Number(exponent)}}`;
    return { 1: power, "-1": `-${power}` }[mantissa] || R`${mantissa} \times ${power}`;
  }

  const bracketed = (value) => (tex(value).startsWith("-") ? `(${tex(value)})` : tex(value));
  const shorten = (items) => (items.length <= WHOLE ? items : [items[0], items[1], R`\dots`, items[items.length - 1]]);
  const few = (values) => (values.length <= WHOLE ? values : [...values.slice(0, WHOLE), values[values.length - 1]]);
  const list = (values) => `[${shorten(few(values).map((value) => tex(value))).join(", ")}]`;
  const commas = (value) => value.toLocaleString("en-US");

  // The numbers of the shown group, as the words need them.
  function viewOf(p, v) {
    const g = p.shown;
    const members = p.members[g] || [];
    const of = (id) => (ELEMENTS.has(id) ? members.map((i) => v[id][i]) : [v[id][g]]);
    const terms = (ids, write) => shorten(few(members).map((i) => write(...ids.map((id) => v[id][i])))).join(" + ");
    const parameter = (values) => members.map((i) => values[p.places[i]]);
    return {
      p, v, g, members, n: p.n[g], groups: p.count, given: p.givenVariance !== null || p.norm === "image", of,
      value: (id) => v[id][g], num: (id) => tex(v[id][g]), signed: (id) => bracketed(v[id][g]), vec: (id) => list(of(id)),
      sum: (id) => terms([id], bracketed), squares: (id) => terms([id], (a) => `${bracketed(a)}^2`),
      products: (one, two) => terms([one, two], (a, b) => R`${bracketed(a)} \cdot ${bracketed(b)}`),
      gamma: () => list(parameter(p.weight)), beta: () => list(parameter(p.bias)),
    };
  }

  function valueOf(id, p, v) {
    if (ELEMENTS.has(id)) return nest(v[id], p.shape);
    if (PARAMETERS.has(id)) return nest(v[id], p.parameterShape);
    if (id === "finite_difference") return v[id].map((row) => row.map(plainNumber));
    return v[id].map(plainNumber);
  }

  const say = (part, c) => (typeof part === "function" ? part(c) : part);

  function steps(p, v) {
    const c = viewOf(p, v);
    const shown = ORDER.filter((id) => v[id] !== undefined && (id !== "groups" || p.norm !== "dyt"));
    return shown.map((id) => {
      const [title, formula, substituted, meaning] = window.evenkeel.words[id].map((part) => say(part, c));
      return { id, title, formula, substituted, value: valueOf(id, p, v), meaning };
    });
  }

  const SMALL = 1e-9;
  const largest = (values) => values.reduce((most, value) => Math.max(most, Math.abs(value)), 0);

  // In every finite group the measured number is the expected one; one group is shown.
  function near(id, title, value, expected, fine, p, start) {
    const error = Math.max(...value.map((a, g) => (fine[g] ? Math.abs(a - expected[g]) : 0)));
    const shown = fine[p.shown] ? p.shown : fine.indexOf(true);
    const count = fine.filter(Boolean).length;
    const everywhere = count > 1 ? ` in all ${commas(count)} groups` : "";
    return { id, title, value: value[shown], expected: expected[shown], passed: error <= SMALL,
      note: `${start}within ${general(error, 2)}${everywhere} (at most 1e-09)` };
  }

  // What has to hold if the steps are right. (Only Python can also compare with the library's own functions.)
  function forwardChecks(p, v) {
    if (p.norm === "minmax" || p.norm === "dyt" || p.givenMean) return [];
    const members = (g) => p.members[g].map((i) => v.normalized[i]);
    const mean = (values) => values.reduce((a, b) => a + b, 0) / Math.max(1, values.length);
    const hats = p.members.map((_, g) => members(g));
    const fine = hats.map((values) => values.length > 0 && values.every(Number.isFinite));
    if (!fine.includes(true)) return [];
    const start = "1, less what ε (or the sample deviation) changes; ";
    if (p.norm === "rms") {
      const size = hats.map((values) => Math.sqrt(mean(values.map((a) => a * a))));
      return [near("rms_one", "root mean square of the result", size, v.rms.map((r, g) => r / v.denominator[g]), fine, p, start)];
    }
    const means = hats.map(mean);
    const spread = hats.map((values, g) => Math.sqrt(mean(values.map((a) => (a - means[g]) ** 2))));
    return [
      near("mean_zero", "mean of the normalized values", means, means.map(() => 0), fine, p, ""),
      near("std_one", "their standard deviation", spread, v.std.map((s, g) => s / v.denominator[g]), fine, p, start),
    ];
  }

  // Whether the shown group's function has one slope there: not at a constant or at shared ends.
  function smooth(p, v) {
    const g = p.shown;
    if (p.norm === "minmax") {
      const times = (end) => p.members[g].filter((i) => p.x[i] === end[g]).length;
      return times(v.minimum) === 1 && times(v.maximum) === 1 && v.range[g] > 0;
    }
    const spread = (v.std || v.rms || [])[g];
    return spread === undefined || p.givenMean !== null || (p.eps > 0 && p.mode === "inside") || spread !== 0;
  }

  function differenceCheck(p, v) {
    const rows = v.finite_difference.filter((row) => row.every(Number.isFinite));
    if (!rows.length || !smooth(p, v)) return [];
    const d = (i) => (p.norm === "dyt" ? 1 / p.alpha : v.denominator[p.groups[i]] * (p.norm === "image" ? p.unitScale : 1));
    const sizes = v.g_hat.map((a, i) => (p.groups[i] < 0 ? 0 : Math.abs(a / d(i)))).filter(Number.isFinite);
    const scale = Math.max(largest(sizes), 2.2250738585072014e-308);
    const error = largest(rows.map((row) => row[1] - row[2])) / scale;
    return [{ id: "finite_difference", title: "gradient against finite differences", value: error, expected: 0, passed: error <= 1e-6,
      note: `difference over the largest unprojected gradient, ${rows.length} elements (at most 1e-06)` }];
  }

  function notes(p, v) {
    const found = [];
    const bad = p.x.flatMap((value, i) => (Number.isFinite(value) || p.groups[i] < 0 ? [] : [i]));
    if (bad.length) {
      const groups = new Set(bad.map((i) => p.groups[i]));
      found.push(`${bad.length === 1 ? "One element is" : `${bad.length} elements are`} not finite (${bad.slice(0, 5).map((i) => `number ${i}: ${format(p.x[i])}`).join(", ")}). ` +
        (p.norm === "dyt" || p.givenMean ? "The others are not touched." : `It spoils every element that shares statistics with it: ${groups.size} of ${p.count} group${p.count === 1 ? "" : "s"}.`));
    }
    const flat = v.variance && !p.givenVariance ? v.variance.flatMap((value, g) => (value === 0 && p.n[g] > 0 ? [g] : [])) : [];
    if (flat.length) {
      const single = flat.every((g) => p.n[g] === 1);
      const subject = single ? "A single element is its own mean, so its variance is 0" : "A group is constant, so its variance is 0";
      found.push(p.norm === "standardize" ? `${subject}: it is divided by 1 and becomes 0.`
        : v.denominator[flat[0]] === 0 ? `${subject}, and ε is 0: 0/0 is not a number. Any ε above 0 gives 0.`
        : `${subject} and ε alone makes the divisor ${format(v.denominator[flat[0]])}. The normalized values are 0.`);
    }
    if (v.mean_square && v.mean_square.includes(0)) found.push(`A group holds zeros only: with ε = ${format(p.eps)} it becomes ${p.eps === 0 ? "0/0, not a number" : "0"}.`);
    return found;
  }

  function walk(config) {
    const { options } = config;
    const p = prepare(config);
    const v = forward(p);
    if (options.backward) backward(p, v);
    const shape = p.shape.join(" × ");
    return {
      norm: config.norm, title: `${NAMES[config.norm]} of ${shape} number${product(p.shape) === 1 ? "" : "s"}`,
      options, shown: p.shown, steps: steps(p, v), checks: [...forwardChecks(p, v), ...(v.finite_difference ? differenceCheck(p, v) : [])], notes: notes(p, v),
    };
  }

  const NAMES = {
    layer: "LayerNorm", rms: "RMSNorm", batch: "BatchNorm", instance: "InstanceNorm", group: "GroupNorm",
    standardize: "standardization", minmax: "min-max scaling", image: "image normalization", dyt: "DyT (dynamic tanh)",
  };

  Object.assign(window.evenkeel, { walk, NAMES, tex, texList: list, general, commas });
})();

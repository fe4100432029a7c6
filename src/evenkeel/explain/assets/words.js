// The words and formulas of explain.json with numbers filled in, as explain/_words.py and _format.py do it.
(function () {
  "use strict";
  const { norms, forward, backward, checks, phrases } = window.evenkeel.words;
  const steps = { ...forward, ...backward };

  // What nobody reads is a mistake: Python refuses it too.
  function refuse(entry, known, where) {
    const odd = Object.keys(entry).find((key) => !known.includes(key));
    if (odd !== undefined) throw new Error(`explain.json: nobody knows the key ${odd} in ${where}`);
  }
  refuse(window.evenkeel.words, ["norms", "choices", "forward", "backward", "checks", "notes", "phrases"], "the file");
  for (const [name, step] of Object.entries(steps)) refuse(step, ["shape", "title", "formula", "numbers", "meaning"], name);
  for (const [name, check] of Object.entries(checks)) refuse(check, ["title", "note"], name);
  for (const [name, row] of Object.entries(norms)) {
    refuse(row, ["name", "family", "spec", "axes", "options", "defaults", "shared_by", "result"], name);
    refuse(row.axes, ["rows", "channels_from", "samples", "lone_vector"], `${name}.axes`);
  }

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
  const commas = (value) => String(value).replace(/\B(?=(\d{3})+$)/g, ",");
  const FORMATS = {
    num: tex,
    signed: bracketed,
    vec: (values) => `[${shorten(few(values).map((a) => tex(a))).join(", ")}]`,
    sum: (values) => shorten(few(values).map(bracketed)).join(" + "),
    squares: (values) => shorten(few(values).map((a) => `${bracketed(a)}^2`)).join(" + "),
    products: (one, two) => {
      const other = few(two);
      return shorten(few(one).map((a, i) => R`${bracketed(a)} \cdot ${bracketed(other[i])}`)).join(" + ");
    },
    count: commas,
    short: (value) => general(value).replace("e-0", "e-").replace("e+0", "e+"),
    g: (value) => general(value),
    g2: (value) => general(value, 2),
    g3: (value) => general(value, 3),
    g4: (value) => general(value, 4),
  };

  const CLAUSE = /^(not )?(\w+)(?: (=|>=|>) (\S+))?$/;
  const COMPARE = { "=": (a, b) => a === b, ">": (a, b) => a > b, ">=": (a, b) => a >= b };

  function clauseHolds(clause, fact) {
    const [, negated, name, compare, literal] = CLAUSE.exec(clause);
    const value = fact(name);
    if (compare === undefined) return Boolean(negated) !== !(value === null || value === false || value === 0);
    if (value === null || typeof value === "string") return value === literal;
    if (literal === "nan") return Number.isNaN(value);
    return literal === "finite" ? Number.isFinite(value) : COMPARE[compare](value, Number(literal));
  }

  const telling = {
    // The first text of a template whose condition holds.
    choose(template, fact) {
      if (typeof template === "string") return template;
      const holds = (condition) => condition.split(" & ").every((clause) => clauseHolds(clause, fact));
      const part = template.find((one) => typeof one === "string" || holds(one[0]));
      return typeof part === "string" ? part : part[1];
    },
    tell: (template, fact) => telling.choose(template, fact).replace(/<([^<>]+)>/g, (_, words) => fill(words.split(" "), fact)),
  };

  function fill(words, fact) {
    if (words.length === 1 && words[0] in phrases) return telling.tell(phrases[words[0]], fact);
    const values = (words.length === 1 ? words : words.slice(1)).map(fact);
    if (values.some((value) => value === null)) throw new Error(`there is nothing to fill in for <${words.join(" ")}>`);
    return words.length === 1 ? String(values[0]) : FORMATS[words[0]](...values);
  }

  // Facts from an object; a name that it lacks is a mistake in a template.
  const from = (facts) => (name) => {
    if (!(name in facts)) throw new Error(`no template may ask for ${name}`);
    return facts[name];
  };

  const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;
  const FACTS = {
    norm: (c) => c.p.row.name,
    family: (c) => c.p.row.family,
    shared_by: (c) => c.p.row.shared_by,
    result: (c) => c.p.row.result,
    takes_eps: (c) => c.p.row.options.includes("eps"),
    takes_weight: (c) => c.p.row.options.includes("weight"),
    given: (c) => c.given,
    weight: (c) => c.p.weight !== null,
    bias: (c) => c.p.bias !== null,
    eps: (c) => c.p.eps,
    eps_mode: (c) => c.p.mode,
    weight_offset: (c) => c.p.offset,
    correction: (c) => c.p.correction,
    scale: (c) => c.p.unitScale,
    alpha: (c) => c.p.alpha,
    low: (c) => c.p.low,
    width: (c) => c.p.high - c.p.low,
    upstream_given: (c) => c.p.given,
    shape: (c) => c.p.shape.join(" × "),
    dtype: (c) => c.p.dtype,
    size: (c) => c.p.x.length,
    masked: (c) => c.p.groups.filter((group) => group < 0).length,
    group: (c) => c.p.shown,
    groups: (c) => c.p.count,
    n: (c) => c.p.n[c.p.shown],
    gamma: (c) => c.members.map((i) => c.p.weight[c.p.places[i]]),
    beta: (c) => c.members.map((i) => c.p.bias[c.p.places[i]]),
    square: (c) => c.fact(c.p.row.family === "rms" ? "mean_square" : "variance"),
    root: (c) => Math.sqrt(c.fact("square")),
    distance: (c) => mean(c.fact("centred").map(Math.abs)),
    sample_ratio: (c) => (c.fact("std") ? c.fact("sample_std") / c.fact("std") : 1),
    bound: (c) => Math.sqrt(Math.max(0, c.fact("n") - 1)),
    factor_text: (c) => tex(c.v.factor[c.p.shown]),
    finite_result: (c) => c.members.length > 0 && c.fact("normalized").every(Number.isFinite),
    result_most: (c) => Math.max(...c.fact("normalized").map(Math.abs)),
    result_mean: (c) => mean(c.fact("normalized")),
    result_std: (c) => Math.sqrt(mean(c.fact("normalized").map((a) => (a - c.fact("result_mean")) ** 2))),
    result_rms: (c) => Math.sqrt(mean(c.fact("normalized").map((a) => a * a))),
    difference_dx: (c) => c.v.finite_difference.map((row) => row[1]),
    difference_numeric: (c) => c.v.finite_difference.map((row) => row[2]),
  };

  // The shown group's numbers: its members of elements, its one number of statistics, null where the norm lacks a step.
  function viewOf(p, v) {
    const view = { p, v, members: p.members[p.shown] || [], given: p.givenVariance !== null || p.row.family === "image" };
    view.fact = (name) => {
      if (name in FACTS) return FACTS[name](view);
      if (!(name in steps)) throw new Error(`no template may ask for ${name}`);
      if (v[name] === undefined) return null;
      const { shape } = steps[name];
      return shape === "elements" ? view.members.map((i) => v[name][i]) : shape === "groups" ? v[name][p.shown] : v[name];
    };
    view.tell = (template, facts = {}) => telling.tell(template, (name) => (name in facts ? facts[name] : view.fact(name)));
    return view;
  }

  Object.assign(window.evenkeel, { general, commas, steps, telling, viewOf, from });
})();

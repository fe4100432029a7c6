// What the reader can change, and how it becomes the options that `walk` takes.
(function () {
  "use strict";
  const { product, missing, flatten, nest } = window.evenkeel.arithmetic;
  const { norms: NORMS, choices } = window.evenkeel.words;
  const has = (state, option) => NORMS[state.norm].options.includes(option);
  const DEFAULTS = Object.assign({}, ...Object.values(NORMS).map((row) => row.defaults));

  function fromSeed(seed) {
    const o = seed.options;
    const list = (value) => (missing(value) ? null : flatten(value));
    return {
      norm: seed.norm, shape: o.shape.slice(), x: flatten(seed.input), shown: seed.shown || 0, dtype: o.dtype,
      axis: NORMS[seed.norm].options.includes("axis") ? o.shared.slice() : null, channelAxis: missing(o.channel_axis) ? null : o.channel_axis,
      groups: o.num_groups || DEFAULTS.groups, eps: missing(o.eps) ? NORMS.layer.spec.eps : Number(o.eps), mode: o.eps_mode || "inside",
      offset: o.weight_offset || 0, correction: o.correction || DEFAULTS.correction, range: o.feature_range || DEFAULTS.feature_range.slice(),
      scale: missing(o.scale) ? DEFAULTS.scale : o.scale, alpha: missing(o.alpha) ? DEFAULTS.alpha : o.alpha,
      weight: list(o.weight), bias: list(o.bias), mask: list(o.mask), mean: list(o.mean), variance: list(o.variance), std: list(o.std),
      backward: Boolean(o.backward), upstream: list(o.upstream),
    };
  }

  // The axes that share and those that have parameters, as explain/_layout.py decides them.
  function layout(state) {
    const { shape } = state;
    const { axes, family } = NORMS[state.norm];
    const all = shape.map((_, axis) => axis);
    const lay = (shared, parameters, channel = null, sample = null, groups = null) =>
      ({ shared, parameter_axes: parameters, sample_axis: sample, channel_axis: channel, num_groups: groups });
    if (!missing(axes.rows)) {
      const shared = state.axis || [axes.rows < 0 ? shape.length + axes.rows : axes.rows];
      return lay(shared, shared);
    }
    if (axes.lone_vector && shape.length === 1) return lay([0], []);
    const fresh = () => (family === "image" ? imageAxis(state) : shape.length >= axes.channels_from ? 1 : 0);
    const channel = missing(state.channelAxis) ? fresh() : state.channelAxis;
    const sample = axes.samples && shape.length >= axes.channels_from ? all.find((axis) => axis !== channel) : null;
    return lay(all.filter((axis) => axis !== channel && axis !== sample), [channel], channel, sample, has(state, "groups") ? state.groups : null);
  }

  function imageAxis(state) {
    const { shape } = state;
    const likely = shape.length === 4 ? [1, 3] : [shape.length - 1, 0];
    const count = state.mean ? state.mean.length : 3;
    return likely.find((axis) => shape[axis] === count) ?? likely[0];
  }

  function parameterShape(state) {
    return layout(state).parameter_axes.map((axis) => state.shape[axis]);
  }

  function toConfig(state) {
    const where = layout(state);
    const sizes = where.parameter_axes.map((axis) => state.shape[axis]);
    const when = (option, value) => (has(state, option) ? value : null);
    const nested = (values, shape) => (values ? nest(values, shape) : null);
    const image = has(state, "std");
    const options = {
      shape: state.shape, dtype: state.dtype, ...where,
      eps: when("eps", state.eps), eps_mode: when("eps", state.mode), weight_offset: when("weight_offset", state.offset),
      correction: when("correction", state.correction), feature_range: when("feature_range", state.range), scale: when("scale", state.scale),
      alpha: when("alpha", state.alpha), weight: when("weight", nested(state.weight, sizes)), bias: when("bias", nested(state.bias, sizes)),
      mask: nested(state.mask, state.shape), mean: state.mean, variance: image ? null : state.variance, std: image ? state.std : null,
      backward: state.backward, upstream: state.backward ? nested(state.upstream, state.shape) : null,
    };
    return { norm: state.norm, input: nest(state.x, state.shape), options, shown: state.shown };
  }

  const usualGroups = (channels) => [2, 3, 5, 7].find((n) => channels % n === 0 && channels > n) || 1;

  // Another norm on the same numbers, with that norm's own defaults where the old options make no sense.
  function changeNorm(state, norm) {
    const before = parameterShape(state).join();
    Object.assign(state, { norm, shown: 0, axis: null, channelAxis: null, mean: null, variance: null, std: null });
    if (norm === "image") {
      const channels = state.shape[imageAxis(state)];
      const constants = (values) => Array.from({ length: channels }, (_, i) => values[i % values.length]);
      Object.assign(state, { channelAxis: imageAxis(state), mean: constants(DEFAULTS.mean), std: constants(DEFAULTS.std), mask: null });
    }
    if (norm === "dyt") state.mask = null;
    if (norm === "group") state.groups = usualGroups(state.shape[layout(state).channel_axis]);
    if (parameterShape(state).join() !== before) state.weight = state.bias = null;
    if (!has(state, "bias")) state.bias = null;
    if (!has(state, "weight")) state.weight = null;
  }

  // A vector gets one element more, or loses one.
  function resize(state, change) {
    const add = change > 0;
    for (const [name, fresh] of [["x", state.x[state.x.length - 1]], ["weight", 1 - state.offset], ["bias", 0], ["mask", 1], ["upstream", 0]]) {
      const values = state[name];
      if (!values || values.length !== state.shape[0]) continue;
      state[name] = add ? [...values, fresh] : values.slice(0, -1);
    }
    state.shape = [state.shape[0] + change];
    if (state.norm === "group" && state.shape[0] % state.groups) state.groups = 1;
    for (const name of ["mean", "variance", "std"]) if (state[name] && state[name].length > 1) state[name] = null;
    state.shown = 0;
    if (state.norm === "image") changeNorm(state, "image");
  }

  // Numbers as the command line reads them; nested lists in quotes.
  const word = (value) => (Number.isFinite(value) ? String(value) : Number.isNaN(value) ? "nan" : value > 0 ? "inf" : "-inf");
  const quote = (values) => values.map(word).join(",");
  // JSON as Python reads it: with NaN and Infinity.
  const brackets = (nested) => (Array.isArray(nested) ? `[${nested.map(brackets).join(", ")}]` : String(Number(nested)));
  const shaped = (values, shape) => (shape.length > 1 && values.length > 1 ? `'${brackets(nest(values, shape))}'` : quote(values));

  // The command that repeats the present state; arrays go in through standard input.
  function command(state) {
    const where = layout(state);
    const words = ["evenkeel explain"];
    const vector = state.shape.length === 1;
    words.push(vector ? state.x.map(word).join(" ") : "-");
    words.push(`--norm ${state.norm}`);
    if (has(state, "axis") && !vector) words.push(`--axis ${quote(where.shared)}`);
    if (!missing(where.channel_axis) && !vector) words.push(`--channel-axis ${where.channel_axis}`);
    if (has(state, "groups")) words.push(`--groups ${state.groups}`);
    if (has(state, "eps")) words.push(`--eps ${state.eps}`, `--eps-mode ${state.mode}`);
    if (has(state, "correction")) words.push(`--correction ${state.correction}`);
    if (has(state, "feature_range")) words.push(`--feature-range=${quote(state.range)}`);
    if (has(state, "scale")) words.push(`--scale ${state.scale}`);
    if (has(state, "alpha")) words.push(`--alpha ${state.alpha}`);
    for (const name of ["weight", "bias"]) if (has(state, name) && state[name]) words.push(`--${name}=${shaped(state[name], parameterShape(state))}`);
    if (has(state, "weight_offset") && state.offset) words.push(`--weight-offset ${state.offset}`);
    for (const name of ["mean", "variance", "std"]) if (state[name]) words.push(`--${name}=${quote(state[name])}`);
    if (state.mask) words.push(`--mask=${shaped(state.mask, state.shape)}`);
    if (state.dtype !== "float64") words.push(`--dtype ${state.dtype}`);
    if (state.shown) words.push(`--row ${state.shown}`);
    if (state.backward) words.push("--backward");
    if (state.backward && state.upstream) words.push(`--upstream=${shaped(state.upstream, state.shape)}`);
    const line = words.join(" ");
    return vector ? line : `echo '${brackets(nest(state.x, state.shape))}' | ${line}`;
  }

  // The state in the address, so that a changed page can be shared; only what has the right kind is taken back.
  function encode(state) {
    return `#s=${encodeURIComponent(JSON.stringify(state, (key, value) => (typeof value === "number" && !Number.isFinite(value) ? String(value) : value)))}`;
  }
  function decode(fragment, start) {
    if (!fragment.startsWith("#s=")) return null;
    try {
      const sent = JSON.parse(decodeURIComponent(fragment.slice(3)));
      const state = { ...structuredClone(start) };
      const numbers = (value) => Array.isArray(value) && value.every((item) => typeof item === "number" || ["NaN", "Infinity", "-Infinity"].includes(item));
      for (const name of Object.keys(start)) {
        const value = sent[name];
        if (["x", "shape", "axis", "range", "weight", "bias", "mask", "mean", "variance", "std", "upstream"].includes(name)) {
          if (value !== null && !numbers(value)) return null;
          state[name] = value === null ? null : value.map(Number);
        } else if (name === "channelAxis") state[name] = value === null ? null : Number(value);
        else if (typeof start[name] === "number") state[name] = Number(value);
        else if (typeof start[name] === "boolean") state[name] = Boolean(value);
        else state[name] = String(value);
      }
      const fits = NORMS[state.norm] && state.mode in choices.eps_mode && product(state.shape) === state.x.length && state.x.length <= 256;
      return fits && window.evenkeel.walk(toConfig(state)) ? state : null;
    } catch (error) {
      return null;
    }
  }

  Object.assign(window.evenkeel, {
    state: { fromSeed, toConfig, changeNorm, resize, command, encode, decode, layout, parameterShape, usualGroups, has },
  });
})();

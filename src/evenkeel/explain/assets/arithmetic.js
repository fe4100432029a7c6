// Every step of a normalization in float64: the definitions of explain/_data.py, in the same order of operations.
// Pure functions: no document, no state. An element that the mask leaves out counts as 0 in every sum.
(function () {
  "use strict";
  const NORMS = window.evenkeel.words.norms;

  const product = (shape) => shape.reduce((a, b) => a * b, 1);

  function shapeOf(nested) {
    const shape = [];
    for (let level = nested; Array.isArray(level); level = level[0]) shape.push(level.length);
    return shape;
  }

  const missing = (value) => value === null || value === undefined;

  // JSON has no NaN and no infinity: there they are strings.
  const number = (value) => typeof value === "string" ? Number(value) : value === null ? NaN : Number(value);
  const plainNumber = (value) => Number.isFinite(value) ? value : String(value);

  function flatten(nested) {
    return Array.isArray(nested) ? nested.flat(Infinity).map(number) : [number(nested)];
  }

  function nest(flat, shape) {
    const plain = Array.from(flat, plainNumber);
    if (shape.length === 0) return plain[0];
    let level = plain;
    for (let axis = shape.length - 1; axis > 0; axis--) {
      const size = shape[axis];
      const outer = product(shape.slice(0, axis));
      level = Array.from({ length: outer }, (_, i) => level.slice(i * size, (i + 1) * size));
    }
    return level;
  }

  function stridesOf(shape) {
    const strides = new Array(shape.length).fill(1);
    for (let axis = shape.length - 2; axis >= 0; axis--) strides[axis] = strides[axis + 1] * shape[axis + 1];
    return strides;
  }

  function coordinates(index, shape) {
    const strides = stridesOf(shape);
    return shape.map((size, axis) => Math.floor(index / strides[axis]) % size);
  }

  // For each element its place in an array that has only the axes kept, in row-major order.
  function project(shape, kept) {
    const sizes = kept.map((axis) => shape[axis]);
    const inner = stridesOf(sizes);
    const strides = stridesOf(shape);
    return Array.from({ length: product(shape) }, (_, index) => kept.reduce(
      (sum, axis, i) => sum + (Math.floor(index / strides[axis]) % shape[axis]) * inner[i], 0));
  }

  // The upstream gradient where none is given: hundredths from a 32-bit hash of the element's number.
  function defaultUpstream(count) {
    return Array.from({ length: count }, (_, i) => {
      let h = Math.imul(i + 1, 2654435761) >>> 0;
      h = Math.imul(h ^ (h >>> 16), 2246822519) >>> 0;
      h = (h ^ (h >>> 13)) >>> 0;
      return (Math.floor((h * 200) / 4294967296) - 100) / 100;
    });
  }

  function sums(values, groups, count) {
    const total = new Array(count).fill(0);
    for (let i = 0; i < values.length; i++) if (groups[i] >= 0) total[groups[i]] += values[i];
    return total;
  }

  // The same over each group's members, in their order.
  const total = (p, values) => p.members.map((list) => list.reduce((sum, i) => sum + values[i], 0));
  const means = (p, values) => total(p, values).map((sum, g) => sum / Math.max(p.n[g], 1));

  const perElement = (groups, compute) => groups.map((group, i) => (group < 0 ? 0 : compute(i, group)));
  const eachGroup = (count, compute) => Array.from({ length: count }, (_, group) => compute(group));

  function denominatorOf(square, eps, mode) {
    if (mode === "inside") return Math.sqrt(square + eps);
    if (mode === "outside") return Math.sqrt(square) + eps;
    return Math.max(Math.sqrt(square), eps);
  }

  const oneIfZero = (value) => (value === 0 ? 1 : value);
  const shrinkage = (root, d) => (d === 0 ? NaN : 100 * (1 - root / d));

  // Mean and deviations, from a given mean or the computed one.
  function moments(p, v, values) {
    const m0 = p.givenMean || means(p, values);
    const first = perElement(p.groups, (i, g) => values[i] - m0[g]);
    const r = p.givenMean ? m0.map(() => 0) : means(p, first);
    v.mean = p.givenMean || m0.map((value, g) => value + r[g]);
    v.centred = perElement(p.groups, (i, g) => first[i] - r[g]);
  }

  // The square under the root: of a group without members it is 1.
  function statistics(p, v) {
    if (p.row.family === "rms") {
      v.mean_square = means(p, p.x.map((a) => a * a)).map((q, g) => (p.n[g] ? q : 1));
      v.rms = v.mean_square.map(Math.sqrt);
      return v.mean_square;
    }
    moments(p, v, p.x);
    const squares = v.centred.map((c) => c * c);
    v.variance = p.givenVariance || means(p, squares).map((value, g) => (p.n[g] ? value : 1));
    v.sample_variance = total(p, squares).map((sum, g) => (p.n[g] < 2 || p.givenVariance ? NaN : sum / (p.n[g] - 1)));
    v.std = v.variance.map(Math.sqrt);
    v.sample_std = v.sample_variance.map(Math.sqrt);
    return p.correction ? v.sample_variance.map((value) => (Number.isNaN(value) ? 0 : value)) : v.variance;
  }

  // Math.min and Math.max give NaN where one of the two is NaN.
  const extremes = (p, pick) => p.members.map((list) => (list.length ? list.reduce((most, i) => pick(most, p.x[i]), p.x[list[0]]) : 0));

  function divide(p, v, square, top) {
    const takesEps = p.row.options.includes("eps");
    v.denominator = square.map((u) => (takesEps ? denominatorOf(u, p.eps, p.mode) : oneIfZero(Math.sqrt(u))));
    if (takesEps) v.eps_effect = v.denominator.map((d, g) => shrinkage(Math.sqrt(square[g]), d));
    v.normalized = perElement(p.groups, (i, g) => top[i] / v.denominator[g]);
    p.square = square;
  }

  // The normalized values of each family.
  const FAMILIES = {
    moments: (p, v) => divide(p, v, statistics(p, v), v.centred),
    rms: (p, v) => divide(p, v, statistics(p, v), p.x),
    minmax(p, v) {
      v.minimum = extremes(p, Math.min);
      v.maximum = extremes(p, Math.max);
      v.range = v.maximum.map((value, g) => value - v.minimum[g]);
      v.denominator = v.range.map(oneIfZero);
      v.normalized = perElement(p.groups, (i, g) => (p.x[i] - v.minimum[g]) / v.denominator[g]);
    },
    image(p, v) {
      v.unit = perElement(p.groups, (i) => p.x[i] / p.unitScale);
      moments(p, v, v.unit);
      v.std = p.givenStd.slice();
      v.denominator = v.std.map(oneIfZero);
      v.normalized = perElement(p.groups, (i, g) => v.centred[i] / v.denominator[g]);
    },
    dyt(p, v) {
      v.stretched = perElement(p.groups, (i) => p.alpha * p.x[i]);
      v.normalized = perElement(p.groups, (i) => Math.tanh(v.stretched[i]));
    },
  };

  function affine(p, v) {
    v.scaled = perElement(p.groups, (i) => v.normalized[i] * p.gain(i));
    v.output = perElement(p.groups, (i) => v.scaled[i] + p.shift(i));
    if (!p.scales) delete v.scaled;
  }

  function forward(p) {
    const v = { input: p.x };
    if (p.row.spec.statistic !== "none") v.groups = p.groups;
    FAMILIES[p.row.family](p, v);
    affine(p, v);
    return v;
  }

  // Which share of the upstream gradient's length lies along 1, along x̂, and elsewhere, in percent.
  function shares(p, v, along) {
    const { groups, count, n } = p;
    const whole = total(p, v.g_hat.map((a) => a * a));
    const hats = total(p, v.normalized.map((a) => a * a));
    if (along.one) v.share_one = eachGroup(count, (g) => (whole[g] === 0 ? 0 : (100 * (n[g] * v.mean_g[g] * v.mean_g[g])) / whole[g]));
    v.share_xhat = eachGroup(count, (g) => {
      if (whole[g] === 0 || hats[g] === 0) return 0;
      const b = n[g] * v.mean_g_xhat[g];
      return (100 * ((b * b) / hats[g])) / whole[g];
    });
    v.share_kept = eachGroup(count, (g) => (100 - (along.one ? v.share_one[g] : 0)) - v.share_xhat[g]);
  }

  // k of the definition: how much of the component along x̂ goes, given where ε enters.
  function epsFactor(p, g, d) {
    if (p.correction) return Math.max(p.n[g], 1) / Math.max(p.n[g] - 1, 1);
    const root = Math.sqrt(p.square[g]);
    if (p.mode === "inside") return 1;
    if (p.mode === "outside") return root === 0 ? 0 : d / root;
    return root > 0 && root >= p.eps ? 1 : 0;
  }

  function projectedGradient(p, v) {
    const { groups, count } = p;
    const centre = p.row.family !== "rms";
    if (centre) v.mean_g = means(p, v.g_hat);
    v.mean_g_xhat = means(p, v.g_hat.map((a, i) => a * v.normalized[i]));
    shares(p, v, { one: centre });
    v.factor = eachGroup(count, (g) => epsFactor(p, g, v.denominator[g]));
    v.projected = perElement(groups, (i, g) => {
      const rest = centre ? v.g_hat[i] - v.mean_g[g] : v.g_hat[i];
      return rest - v.normalized[i] * (v.factor[g] * v.mean_g_xhat[g]);
    });
    v.dx = perElement(groups, (i, g) => v.projected[i] / v.denominator[g]);
  }

  function rangeGradient(p, v) {
    const { groups, count } = p;
    v.sum_at_max = total(p, v.g_hat.map((a, i) => a * v.normalized[i]));
    v.sum_at_min = total(p, v.g_hat.map((a, i) => a * (1 - v.normalized[i])));
    const whole = total(p, v.g_hat);
    v.dx = perElement(groups, (i, g) => v.g_hat[i] / v.denominator[g]);
    for (let g = 0; g < count; g++) {
      const high = p.members[g].find((i) => p.x[i] === v.maximum[g]);
      const low = p.members[g].find((i) => p.x[i] === v.minimum[g]);
      const d = v.denominator[g];
      if (v.range[g] === 0) v.dx[low] -= whole[g] / d;
      else {
        if (high !== undefined) v.dx[high] -= v.sum_at_max[g] / d;
        if (low !== undefined) v.dx[low] -= v.sum_at_min[g] / d;
      }
    }
  }

  const GRADIENTS = {
    moments(p, v) {
      if (p.givenMean) v.dx = perElement(p.groups, (i, g) => v.g_hat[i] / v.denominator[g]);
      else projectedGradient(p, v);
    },
    rms: projectedGradient,
    minmax: rangeGradient,
    image(p, v) {
      v.dx = perElement(p.groups, (i, g) => v.g_hat[i] / v.denominator[g] / p.unitScale);
    },
    dyt(p, v) {
      v.slope = perElement(p.groups, (i) => 1 - v.normalized[i] * v.normalized[i]);
      v.dx = perElement(p.groups, (i) => v.g_hat[i] * v.slope[i] * p.alpha);
      v.dalpha = [v.g_hat.reduce((sum, a, i) => sum + (p.groups[i] < 0 ? 0 : a * v.slope[i] * p.x[i]), 0)];
    },
  };

  // The members whose derivative is checked by differences: at most sixteen, evenly spread over the shown group.
  function checkedMembers(p) {
    const members = p.members[p.shown] || [];
    const size = Math.min(16, members.length);
    return Array.from({ length: size }, (_, i) => members[Math.floor((i * members.length) / size)]);
  }

  function differences(p, v) {
    const members = p.members[p.shown] || [];
    const d = v.denominator ? v.denominator[p.shown] : 1;
    const h = (d * p.unitScale) / 131072;
    return checkedMembers(p).map((index) => {
      const moved = (step) => {
        const x = p.x.slice();
        x[index] += step;
        return { at: x[index], y: forward({ ...p, x }).output };
      };
      const [up, down] = [moved(h), moved(-h)];
      let sum = 0;
      for (const i of members) sum += v.upstream[i] * (up.y[i] - down.y[i]);
      return [index, v.dx[index], sum / (up.at - down.at)];
    });
  }

  function backward(p, v) {
    v.upstream = perElement(p.groups, (i) => p.upstream[i]);
    v.g_hat = perElement(p.groups, (i) => v.upstream[i] * p.gain(i));
    GRADIENTS[p.row.family](p, v);
    const count = product(p.parameterShape);
    if (p.row.options.includes("weight")) v.dweight = sums(v.upstream.map((g, i) => g * v.normalized[i]), p.places, count);
    if (p.row.options.includes("bias")) v.dbias = sums(v.upstream, p.places, count);
    v.finite_difference = differences(p, v);
  }

  // From a resolved explanation's options, as Python gives them, to what the arithmetic needs.
  function prepare({ norm, input, options, shown = 0 }) {
    const shape = options.shape || shapeOf(input);
    const x = flatten(input);
    const all = shape.map((_, axis) => axis);
    const { groups, count } = groupNumbers(shape, options);
    const mask = options.mask ? flatten(options.mask) : null;
    if (mask) mask.forEach((valid, i) => { if (!valid) groups[i] = -1; });
    const members = Array.from({ length: count }, () => []);
    groupOrder(shape, options).forEach((i) => { if (groups[i] >= 0) members[groups[i]].push(i); });
    const axes = options.parameter_axes || [];
    const places = project(shape, all.filter((axis) => axes.includes(axis)));
    const given = (name) => (missing(options[name]) ? null : flatten(options[name]));
    const offset = options.weight_offset || 0;
    const weight = given("weight") && given("weight").map((w) => w + offset);
    const bias = given("bias");
    const [low, high] = options.feature_range || [0, 1];
    const p = {
      row: NORMS[norm], x, shape, groups, count, members, shown, mask, n: members.map((list) => list.length),
      eps: options.eps ?? 0, mode: options.eps_mode || "inside", correction: options.correction || 0,
      alpha: options.alpha ?? 1, unitScale: options.scale ?? 1, low, high,
      givenMean: given("mean"), givenVariance: given("variance"), givenStd: given("std"),
      weight, bias, places, offset, dtype: options.dtype || "float64", given: !missing(options.upstream), parameterShape: axes.map((axis) => shape[axis]),
      gain: (i) => (weight ? weight[places[i]] : 1), shift: (i) => (bias ? bias[places[i]] : 0), scales: weight !== null,
      upstream: given("upstream") || defaultUpstream(x.length),
    };
    if (p.row.family === "minmax") Object.assign(p, { gain: () => high - low, shift: () => low, scales: high - low !== 1 });
    return p;
  }

  function groupNumbers(shape, options) {
    const all = shape.map((_, axis) => axis);
    if (!options.num_groups) {
      const kept = all.filter((axis) => !options.shared.includes(axis));
      return { groups: project(shape, kept), count: product(kept.map((axis) => shape[axis])) };
    }
    const { channel_axis: channel, sample_axis: sample, num_groups: each } = options;
    const size = shape[channel] / each;
    const place = project(shape, [channel]);
    const row = missing(sample) ? place.map(() => 0) : project(shape, [sample]);
    const samples = missing(sample) ? 1 : shape[sample];
    return { groups: place.map((c, i) => row[i] * each + Math.floor(c / size)), count: samples * each };
  }

  // All elements in an order that lists each group's members in row-major order of the shared axes.
  function groupOrder(shape, options) {
    const elements = Array.from({ length: product(shape) }, (_, i) => i);
    if (!options.num_groups) return elements;
    const all = shape.map((_, axis) => axis);
    const { channel_axis: channel, sample_axis: sample } = options;
    const front = [sample, channel].filter((axis) => !missing(axis));
    const place = project(shape, [...front, ...all.filter((axis) => !front.includes(axis))].filter((a, i, list) => list.indexOf(a) === i));
    return elements.sort((a, b) => place[a] - place[b]);
  }

  Object.assign(window.evenkeel, {
    arithmetic: {
      product, missing, shapeOf, flatten, nest, stridesOf, coordinates, defaultUpstream, prepare, forward, backward, groupNumbers, denominatorOf,
      plainNumber,
    },
  });
})();

// Norms on one tensor (sample, channel, position): which cells share statistics, and what each cell becomes.
// The reader's own norm has the groups and the result of the steps; the others run by the same arithmetic.
(function () {
  "use strict";
  const { product, stridesOf, nest, missing, prepare, forward } = window.evenkeel.arithmetic;
  const { usualGroups, layout, toConfig } = window.evenkeel.state;
  const { norms: NORMS } = window.evenkeel.words;
  const POSITIONS = 3;
  const ROWS = ["layer", "rms"];

  // The reader's tensor as (sample, channel, position), or a small one made of a vector's numbers. `index` leads from
  // a cell to the number it shows.
  function arrange(state, channelLast) {
    const { shape } = state;
    if (shape.length === 1) return fromVector(state);
    const { channel_axis: own, sample_axis: sampleAxis } = layout(state);
    const channel = missing(own) ? (shape.length > 2 && channelLast ? shape.length - 1 : 1) : own;
    // One image has no samples' axis, and neither have channels times positions.
    const single = state.norm === "image" ? shape.length < 4 : state.norm === "instance" && missing(sampleAxis);
    const axes = shape.map((_, axis) => axis).filter((axis) => axis !== channel);
    const [sample, rest] = single ? [null, axes] : [axes[0], axes.slice(1)];
    const strides = stridesOf(shape);
    const size = { samples: single ? 1 : shape[sample], channels: shape[channel], positions: product(rest.map((axis) => shape[axis])) };
    const index = [];
    for (let n = 0; n < size.samples; n++) for (let c = 0; c < size.channels; c++) for (let l = 0; l < size.positions; l++) {
      let at = (single ? 0 : n * strides[sample]) + c * strides[channel];
      for (let k = rest.length - 1, left = l; k >= 0; left = Math.floor(left / shape[rest[k]]), k--) at += (left % shape[rest[k]]) * strides[rest[k]];
      index.push(at);
    }
    return { ...size, axes: { sample, channel }, index, values: index.map((i) => state.x[i]), made: false };
  }

  // The first position of sample 0 holds the vector.
  function fromVector(state) {
    const [samples, channels, positions] = [2, state.x.length, POSITIONS];
    const [values, index] = [[], []];
    for (let n = 0; n < samples; n++) for (let c = 0; c < channels; c++) for (let l = 0; l < positions; l++) {
      index.push((c + l) % channels);
      values.push((n + 1) * state.x[(c + l) % channels]);
    }
    return { samples, channels, positions, axes: {}, index, values, made: true };
  }

  const shapeOf = (tensor) => [tensor.samples, tensor.channels, tensor.positions];
  const some = (each, of, sample) => (n, c) => `channels ${Math.floor(c / each) * each} to ${Math.floor(c / each) * each + each - 1}${of > 1 ? "" : " (all)"} of ${sample(n)}`;

  // The four norms of a tensor: the axes that share, and how to say it.
  function norms(tensor, state, whole) {
    const groups = state.norm === "group" ? state.groups : usualGroups(tensor.channels);
    const each = tensor.channels / groups;
    return [
      { norm: "batch", shared: [0, 2], who: "one channel, over all samples and positions", tell: (n, c) => `channel ${c} of every sample and position` },
      whole ? { norm: "layer", shared: [1, 2], who: "one sample, over all channels and positions", tell: (n) => `everything in sample ${n}` }
        : { norm: "layer", shared: [1], who: "one position of one sample, over its channels", tell: (n, c, l) => `position ${l} of sample ${n}, all channels` },
      { norm: "instance", shared: [2], who: "one channel of one sample, over its positions", tell: (n, c) => `channel ${c} of sample ${n}, all positions` },
      { norm: "group", shared: [2], num_groups: groups, sample_axis: 0, channel_axis: 1, who: `${each} of ${tensor.channels} channels of one sample (${groups} group${groups > 1 ? "s" : ""})`,
        tell: some(each, groups, (n) => `sample ${n}`) },
    ];
  }

  // A panel from options on the tensor as it is arranged.
  function onTensor(tensor, state, one, more = {}) {
    const shape = shapeOf(tensor);
    const mask = state.mask && nest(tensor.index.map((i) => state.mask[i]), shape);
    const { norm, shared, num_groups: num = null, sample_axis: sample = null, channel_axis: channel = null } = one;
    const options = { shape, shared, num_groups: num, sample_axis: sample, channel_axis: channel, parameter_axes: [], eps: state.eps, eps_mode: state.mode, mask, ...more };
    const p = prepare({ norm, input: nest(tensor.values, shape), options });
    return panel(tensor, one, p, forward(p), p.groups.map((_, i) => i));
  }

  function panel(tensor, one, p, v, index) {
    const alone = NORMS[one.norm].spec.statistic === "none";
    return { ...one, tensor, p, v, name: one.name || p.row.name, groups: index.map((i) => (p.groups[i] < 0 ? -1 : alone ? i : p.groups[i])), group: (i) => p.groups[index[i]], value: (i) => v.output[index[i]] };
  }

  // A vector's own norm on the tensor made of it, with the vector's parameters.
  function onMade(tensor, state, one) {
    const count = tensor.samples * tensor.positions;
    const given = (values) => values && Array.from({ length: count }, () => values[0]);
    return onTensor(tensor, state, { ...one, norm: state.norm, shared: [1], own: true },
      { parameter_axes: [1], weight: state.weight, bias: state.bias, weight_offset: state.offset, mean: given(state.mean), variance: given(state.variance) });
  }

  // The reader's own norm on the reader's own numbers.
  function onOwn(tensor, state, one) {
    const p = prepare(toConfig(state));
    const { shared } = layout(state);
    const usual = !ROWS.includes(state.norm) || shared.join() === [tensor.axes.channel].join();
    const told = usual && one ? one : { who: p.row.shared_by, tell: null };
    return panel(tensor, { ...told, norm: state.norm, own: true }, p, forward(p), tensor.index);
  }

  // The panels of the page: four norms, the reader's own among them or, where it is none of the four, before them.
  // Each tells of the same selected cell.
  function panels(state, { channelLast, whole }) {
    const tensor = arrange(state, channelLast);
    const four = norms(tensor, state, whole && !ROWS.includes(state.norm));
    const place = four.findIndex(({ norm }) => norm === (state.norm === "rms" ? "layer" : state.norm));
    const list = four.map((one) => ({ cellOf: (i) => i, selects: (i) => i, ...onTensor(tensor, state, one) }));
    const same = { cellOf: (i) => i, selects: (i) => i };
    if (!tensor.made) {
      const own = { ...same, ...onOwn(tensor, state, four[place]) };
      if (place < 0) list.unshift(own); else list[place] = own;
    } else if (ROWS.includes(state.norm)) list[place] = { ...same, ...onMade(tensor, state, four[place]) };
    else {
      const vector = { samples: 1, channels: state.x.length, positions: 1, axes: {}, index: state.x.map((_, i) => i), values: state.x };
      const name = `${NORMS[state.norm].name} of your vector`;
      list.unshift({ ...onOwn(vector, state, null), name, cellOf: (i) => tensor.index[i], selects: (i) => i * tensor.positions });
    }
    return { tensor, list };
  }

  Object.assign(window.evenkeel, { tensor: { arrange, panels } });
})();

// Batch-, Layer-, Instance- and GroupNorm on one tensor (sample, channel, position): who shares with whom.
(function () {
  "use strict";
  const { html, format } = window.evenkeel.draw;
  const { product, stridesOf, denominatorOf, groupNumbers } = window.evenkeel.arithmetic;
  const { usualGroups } = window.evenkeel.state;
  const COLOURS = ["series2", "series1", "series3", "series6", "series5", "series4", "muted"];
  const MOST = { samples: 4, channels: 8, positions: 8 };
  const letter = (group) => (group < 26 ? String.fromCharCode(65 + group) : String.fromCharCode(64 + Math.floor(group / 26)) + String.fromCharCode(65 + (group % 26)));

  // The reader's tensor as (sample, channel, position), or a small one made of a vector's numbers.
  function arrange(state, channelLast) {
    const { shape, x } = state;
    if (shape.length === 1) return fromVector(x, state.mask);
    const strides = stridesOf(shape);
    // One image has no samples' axis.
    const single = state.norm === "image" && shape.length < 4;
    const channel = state.norm === "image" ? state.channelAxis : shape.length > 2 && channelLast ? shape.length - 1 : 1;
    const rest = shape.map((_, axis) => axis).filter((axis) => (single || axis !== 0) && axis !== channel);
    const size = { samples: single ? 1 : shape[0], channels: shape[channel], positions: product(rest.map((axis) => shape[axis])) };
    const index = [];
    for (let n = 0; n < size.samples; n++) for (let c = 0; c < size.channels; c++) for (let l = 0; l < size.positions; l++) {
      let at = (single ? 0 : n * strides[0]) + c * strides[channel];
      for (let k = rest.length - 1, left = l; k >= 0; left = Math.floor(left / shape[rest[k]]), k--) at += (left % shape[rest[k]]) * strides[rest[k]];
      index.push(at);
    }
    return { ...size, values: index.map((i) => x[i]), valid: index.map((i) => !state.mask || state.mask[i] !== 0), made: false };
  }

  function fromVector(x, mask) {
    const [samples, channels, positions] = [2, 4, 3];
    const [values, valid] = [[], []];
    for (let n = 0; n < samples; n++) for (let c = 0; c < channels; c++) for (let l = 0; l < positions; l++) {
      values.push((n + 1) * x[(c + l) % x.length]);
      valid.push(!mask || mask[(c + l) % x.length] !== 0);
    }
    return { samples, channels, positions, values, valid, made: true };
  }

  function norms(tensor, whole) {
    const groups = usualGroups(tensor.channels);
    const each = tensor.channels / groups;
    return [
      { name: "BatchNorm", shared: [0, 2], who: "one channel, over all samples and positions", tell: (n, c) => `channel ${c} of every sample and position` },
      whole ? { name: "LayerNorm", shared: [1, 2], who: "one sample, over all channels and positions", tell: (n) => `everything in sample ${n}` }
        : { name: "LayerNorm", shared: [1], who: "one position of one sample, over its channels", tell: (n, c, l) => `position ${l} of sample ${n}, all channels` },
      { name: "InstanceNorm", shared: [2], who: "one channel of one sample, over its positions", tell: (n, c) => `channel ${c} of sample ${n}, all positions` },
      { name: "GroupNorm", shared: [1, 2], num_groups: groups, sample_axis: 0, channel_axis: 1, who: `${each} of ${tensor.channels} channels of one sample (${groups} group${groups > 1 ? "s" : ""})`,
        tell: (n, c) => `channels ${Math.floor(c / each) * each} to ${Math.floor(c / each) * each + each - 1} of sample ${n}` },
    ];
  }

  function statistics(values, groups, group) {
    const members = values.filter((_, i) => groups[i] === group);
    const mean = members.reduce((a, b) => a + b, 0) / members.length;
    const variance = members.reduce((sum, value) => sum + (value - mean) ** 2, 0) / members.length;
    return { count: members.length, mean, variance };
  }

  function panel(tensor, norm, state, select) {
    const shape = [tensor.samples, tensor.channels, tensor.positions];
    const groups = groupNumbers(shape, { num_groups: null, ...norm }).groups.map((group, i) => (tensor.valid[i] ? group : -1));
    const box = html("div", { class: "tensor", role: "grid", "aria-label": `${norm.name}: ${norm.who}` });
    const cells = new Map();
    const shown = [Math.min(shape[0], MOST.samples), Math.min(shape[1], MOST.channels), Math.min(shape[2], MOST.positions)];
    for (let n = 0; n < shown[0]; n++) {
      const table = html("table", { role: "presentation" }, [html("caption", { text: `sample ${n}` })]);
      for (let c = 0; c < shown[1]; c++) {
        const row = html("tr", { role: "row" }, [html("th", { role: "rowheader", text: `c${c}` })]);
        for (let l = 0; l < shown[2]; l++) {
          const i = (n * shape[1] + c) * shape[2] + l;
          const group = groups[i];
          const cell = html("td", {
            role: "gridcell", tabindex: i === 0 ? 0 : -1, class: group < 0 ? "masked" : `pattern${Math.floor(group / COLOURS.length) % 4}`, "data-letter": group < 0 ? "" : letter(group),
            style: `--shade: var(--${group < 0 ? "grid" : COLOURS[group % COLOURS.length]})`,
            "aria-label": `sample ${n}, channel ${c}, position ${l}: ${format(tensor.values[i], 4)}, ${group < 0 ? "masked" : `group ${letter(group)}`}`,
            text: format(tensor.values[i], 3),
          });
          cell.place = [n, c, l];
          cell.addEventListener("mouseenter", () => select(i));
          cell.addEventListener("focus", () => select(i));
          cell.addEventListener("click", () => select(i));
          cells.set(i, cell);
          row.append(cell);
        }
        table.append(row);
      }
      box.append(table);
    }
    box.addEventListener("keydown", (event) => move(event, cells, shape, shown));
    const readout = html("p", { class: "readout" });
    return { norm, groups, cells, box, readout, node: html("div", {}, [html("h3", { text: norm.name }), html("p", { class: "who", text: norm.who }), box, readout]) };
  }

  function move(event, cells, shape, shown) {
    if (!event.target.place) return;
    const [n, c, l] = event.target.place;
    const target = { ArrowLeft: [n, c, l - 1], ArrowRight: [n, c, l + 1], ArrowUp: [n, c - 1, l], ArrowDown: [n, c + 1, l], PageUp: [n - 1, c, l], PageDown: [n + 1, c, l], Home: [n, c, 0], End: [n, c, shown[2] - 1] }[event.key];
    if (!target) return;
    event.preventDefault();
    if (target[1] < 0 && target[0] > 0) { target[0]--; target[1] = shown[1] - 1; }
    if (target[1] >= shown[1]) { target[0]++; target[1] = 0; }
    const next = cells.get((target[0] * shape[1] + target[1]) * shape[2] + target[2]);
    if (next && target.every((at, axis) => at >= 0 && at < shown[axis])) next.focus();
  }

  function tell(one, tensor, state, i) {
    const group = one.groups[i];
    for (const [index, cell] of one.cells) {
      cell.classList.toggle("partner", group >= 0 && one.groups[index] === group);
      cell.classList.toggle("self", index === i);
      cell.tabIndex = index === i ? 0 : -1;
    }
    const [n, c, l] = [Math.floor(i / (tensor.channels * tensor.positions)), Math.floor(i / tensor.positions) % tensor.channels, i % tensor.positions];
    if (group < 0) {
      one.readout.replaceChildren(html("strong", { text: `x[${n}, ${c}, ${l}] = ${format(tensor.values[i], 4)} is masked. ` }), "It counts nowhere and becomes 0.");
      return;
    }
    const { count, mean, variance } = statistics(tensor.values, one.groups, group);
    const normal = (tensor.values[i] - mean) / denominatorOf(variance, state.eps, state.mode);
    const partners = count === 1 ? "It shares with nobody." : `It shares with ${count - 1} other${count > 2 ? "s" : ""}: ${one.norm.tell(n, c, l)}.`;
    one.readout.replaceChildren(
      html("strong", { text: `x[${n}, ${c}, ${l}] = ${format(tensor.values[i], 4)}, group ${letter(group)}. ` }), `${partners} Mean ${format(mean, 4)}, variance ${format(variance, 4)}; it becomes `,
      html("strong", { text: format(normal, 4) }), count === 1 ? ", whatever it was." : ".");
  }

  function draw(state, view) {
    const tensor = arrange(state, view.channelLast);
    const panels = norms(tensor, view.whole).map((norm) => panel(tensor, norm, state, (i) => { view.selected = i; panels.forEach((one) => tell(one, tensor, state, i)); }));
    document.getElementById("sharing-body").replaceChildren(...panels.map((one) => one.node));
    const first = panels[0].cells.has(view.selected) ? view.selected : 0;
    panels.forEach((one) => tell(one, tensor, state, first));
    const cut = tensor.samples > MOST.samples || tensor.channels > MOST.channels || tensor.positions > MOST.positions;
    const size = `${tensor.samples} samples × ${tensor.channels} channels × ${tensor.positions} position${tensor.positions === 1 ? "" : "s"}`;
    document.getElementById("sharing-note").textContent = (tensor.made
      ? `Your input is a vector, so here is a small tensor made of its numbers: ${size}. Sample 0 holds them, moved on by one at each position; sample 1 is sample 0 doubled.`
      : `Your tensor as ${size}.`) + (cut ? " Only its first cells are drawn; the statistics are those of all." : "") + (state.mask ? " Cells struck through are masked: they share with nobody and count nowhere." : "");
  }

  Object.assign(window.evenkeel, { sharing: { draw, arrange, norms } });
})();

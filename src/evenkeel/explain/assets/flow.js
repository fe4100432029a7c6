// A residual stream with the norm before each sublayer, and with the norm after each sum, on the reader's vector.
(function () {
  "use strict";
  const { element, say, figure, html, format, moments, dumbbells, distribution, bars } = window.evenkeel.draw;
  const { denominatorOf } = window.evenkeel.arithmetic;
  const BLOCKS = 4;

  const rms = (values) => Math.sqrt(values.reduce((sum, value) => sum + value * value, 0) / values.length);

  function normalize(values, state, kind) {
    const mean = kind === "rms" ? 0 : values.reduce((a, b) => a + b, 0) / values.length;
    const centred = values.map((value) => value - mean);
    const square = centred.reduce((sum, value) => sum + value * value, 0) / values.length;
    const d = denominatorOf(square, state.eps, state.mode);
    return centred.map((value) => value / d);
  }

  // The sublayer turns neighbouring pairs by a quarter: what it adds is as long as what it reads, and perpendicular to
  // it, as the output of a random layer nearly is. An odd last element stays.
  const sublayer = (values) => values.map((value, i) => (i % 2 ? values[i - 1] : i + 1 < values.length ? -values[i + 1] : value));
  const add = (a, b) => a.map((value, i) => value + b[i]);

  function pre(x, state, kind) {
    const blocks = [];
    let stream = x;
    for (let k = 1; k <= BLOCKS; k++) {
      const normed = normalize(stream, state, kind);
      const branch = sublayer(normed);
      const next = add(stream, branch);
      blocks.push({ into: rms(stream), normed: rms(normed), branch: rms(branch), sum: rms(next), out: rms(next) });
      stream = next;
    }
    return blocks;
  }

  function post(x, state, kind) {
    const blocks = [];
    let stream = x;
    for (let k = 1; k <= BLOCKS; k++) {
      const branch = sublayer(stream);
      const sum = add(stream, branch);
      const next = normalize(sum, state, kind);
      blocks.push({ into: rms(stream), branch: rms(branch), sum: rms(sum), out: rms(next) });
      stream = next;
    }
    return blocks;
  }

  // Arrow widths grow with the logarithm of the magnitude, within what can be drawn.
  const thickness = (value) => (Number.isFinite(value) && value > 0 ? Math.max(1, Math.min(9, 3 + 2 * Math.log10(value))) : 1);
  const NORM = (name) => name === "rms" ? "RMSNorm" : "LayerNorm";

  function diagram(blocks, kind, first) {
    const [width, left, right, step] = [380, 116, 300, 148];
    const top = 34;
    const parts = [say(left, 16, `x, rms ${format(blocks[0].into, 4)}`, { "text-anchor": "middle", class: "label" })];
    const line = (x1, y1, x2, y2, value) => element("line", { x1, y1, x2, y2, "stroke-width": thickness(value), class: "stream" });
    const box = (x, y, text, style) => [element("rect", { x: x - 54, y: y - 15, width: 108, height: 30, rx: 4, class: style }), say(x, y + 4.5, text, { "text-anchor": "middle" })];
    const plus = (x, y) => [element("circle", { cx: x, cy: y, r: 11, class: "plus" }), say(x, y + 5, "+", { "text-anchor": "middle" })];
    const note = (x, y, value, anchor = "start") => say(x, y, format(value, 3), { class: "magnitude halo", "text-anchor": anchor });
    blocks.forEach((block, k) => {
      const y = top + k * step;
      const join = y + 96;
      parts.push(line(left, y - 8, left, join, block.into), line(left, y + 8, right, y + 8, block.into), line(right, y + 8, right, y + 20, block.into));
      if (first) parts.push(...box(right, y + 30, NORM(kind), "norm"), line(right, y + 45, right, y + 56, block.normed), note(right + 8, y + 54, block.normed));
      else parts.push(line(right, y + 14, right, y + 56, block.into));
      parts.push(...box(right, y + 70, `sublayer ${k + 1}`, "sub"), line(right, y + 85, right, join, block.branch), line(right, join, left + 12, join, block.branch));
      parts.push(note(right - 60, join - 7, block.branch, "end"), ...plus(left, join));
      if (first) parts.push(line(left, join + 11, left, y + step - 8, block.out), note(left - 12, join + 30, block.out, "end"));
      else {
        parts.push(line(left, join + 11, left, join + 16, block.sum), note(left - 18, join + 4, block.sum, "end"));
        parts.push(...box(left, join + 29, NORM(kind), "norm"), line(left, join + 44, left, y + step - 8, block.out), note(left - 60, join + 34, block.out, "end"));
      }
    });
    const end = top + BLOCKS * step;
    parts.push(say(left, end + 8, `rms ${format(blocks[BLOCKS - 1].out, 4)}`, { "text-anchor": "middle", class: "label" }));
    return figure(width, end + 18, `${first ? "Norm before the sublayer" : "Norm after the sum"}: rms after each block ${blocks.map((block) => format(block.out, 4)).join(", ")}`, parts);
  }

  function table(blocks) {
    return html("p", { class: "small", text: `rms of the stream after each block: ${blocks.map((block) => format(block.out, 4)).join(", ")}` });
  }

  function drawFlow(x, state) {
    const kind = state.norm === "rms" ? "rms" : "layer";
    const [before, after] = [pre(x, state, kind), post(x, state, kind)];
    const ratio = before[BLOCKS - 1].branch / before[BLOCKS - 1].into;
    document.getElementById("flow-lead").textContent =
      `Your ${x.length} numbers through ${BLOCKS} blocks with ${NORM(kind)} (no weight, your ε). The sublayers here are fixed, not learned: each turns neighbouring pairs of numbers by a quarter, so what it adds is as long as what it reads and nearly perpendicular to it, as the output of a layer with random weights is. ` +
      "The numbers beside the arrows are root mean squares, and the arrows are as thick as their logarithm.";
    const parts = [
      ["Pre-norm: the sums add up", before, true, `The stream is never normalized: it starts at ${format(before[0].into, 3)} and ends at ${format(before[BLOCKS - 1].out, 3)}. Each block adds a branch of rms ${format(before[BLOCKS - 1].branch, 3)}, whatever the stream's size; for the last one that is ${format(100 * ratio, 3)} % of what is there. A model needs one more norm at the end.`],
      ["Post-norm: every sum is set back", after, false, `Every block ends at ${format(after[BLOCKS - 1].out, 3)}: the size of the input is forgotten after the first one, and the way straight through passes a norm in each block, which the gradient passes too.`],
    ];
    document.getElementById("flow-body").replaceChildren(...parts.map(([title, blocks, first, text]) => html("div", {}, [html("h3", { text: title }), diagram(blocks, kind, first), html("p", { text }), table(blocks)])));
  }

  function drawAgainst(x, state) {
    const [layer, root] = [normalize(x, state, "layer"), normalize(x, state, "rms")];
    const mean = x.reduce((a, b) => a + b, 0) / x.length;
    const share = (100 * mean * mean) / (rms(x) ** 2);
    const most = Math.max(...layer.map((value, i) => Math.abs(value - root[i])));
    document.getElementById("against-lead").textContent = x.every(Number.isFinite)
      ? `The mean is ${format(mean, 4)}, so ${format(share, 3)} % of the mean square is the mean's. ${share < 1 ? "There is almost no mean to remove, and the two nearly agree" : "LayerNorm removes it, RMSNorm keeps it"}: their results differ by up to ${format(most, 3)}. Same ε, no weight.`
      : "A number is not finite, so there is nothing to compare.";
    document.getElementById("against-body").replaceChildren(dumbbells([
      { name: "input, divided by its rms: RMSNorm", values: root, colour: "var(--series1)" }, { name: "mean removed as well: LayerNorm", values: layer, colour: "var(--series2)" },
    ]));
  }

  function drawDistribution(before, after, name) {
    const [[m0, s0], [m1, s1]] = [moments(before), moments(after)];
    document.getElementById("distribution-lead").textContent = `Mean ${format(m0, 4)} becomes ${format(m1, 4)}, standard deviation ${format(s0, 4)} becomes ${format(s1, 4)}. ${name} The dots are the values, the shaded band reaches one standard deviation to each side.`;
    document.getElementById("distribution-body").replaceChildren(
      html("div", {}, [html("h3", { text: "Before" }), distribution(before, "before", "var(--series1)")]),
      html("div", {}, [html("h3", { text: "After" }), distribution(after, "after", "var(--series2)")]));
  }

  Object.assign(window.evenkeel, { flow: { drawFlow, drawAgainst, drawDistribution, bars, pre, post, normalize } });
})();

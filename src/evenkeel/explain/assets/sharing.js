// The panels of tensor.js as grids of cells: who shares with whom.
(function () {
  "use strict";
  const { html, format } = window.evenkeel.draw;
  const { panels } = window.evenkeel.tensor;
  const COLOURS = ["series2", "series1", "series3", "series6", "series5", "series4", "muted"];
  const MOST = { samples: 4, channels: 8, positions: 8 };
  const letter = (group) => (group < 26 ? String.fromCharCode(65 + group) : String.fromCharCode(64 + Math.floor(group / 26)) + String.fromCharCode(65 + (group % 26)));
  const sizes = (tensor) => [tensor.samples, tensor.channels, tensor.positions];

  function grid(one, select) {
    const { tensor, groups } = one;
    const shape = sizes(tensor);
    const box = html("div", { class: "tensor", role: "grid", "aria-label": `${one.name}: ${one.who}` });
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
          for (const event of ["mouseenter", "focus", "click"]) cell.addEventListener(event, () => select(one.selects(i)));
          cells.set(i, cell);
          row.append(cell);
        }
        table.append(row);
      }
      box.append(table);
    }
    box.addEventListener("keydown", (event) => move(event, cells, shape, shown));
    const readout = html("p", { class: "readout" });
    const title = one.own && !one.name.includes("your") ? `${one.name} (yours)` : one.name;
    const node = html("div", {}, [html("h3", { text: title[0].toUpperCase() + title.slice(1) }), html("p", { class: "who", text: one.who }), box, readout]);
    return { ...one, cells, readout, node };
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

  // The statistics that the cell's group shares.
  function statistics({ p, v }, group) {
    const of = (name) => format(v[name][group], 4);
    return {
      moments: () => `Mean ${of("mean")}, variance ${of("variance")}; `, image: () => `Mean ${of("mean")}, deviation ${of("std")} (constants); `,
      rms: () => `Root mean square ${of("rms")}; `, minmax: () => `From ${of("minimum")} to ${of("maximum")}; `, dyt: () => "",
    }[p.row.family]();
  }

  function tell(one, selected) {
    const i = one.cellOf(selected);
    const group = one.groups[i];
    for (const [index, cell] of one.cells) {
      cell.classList.toggle("partner", group >= 0 && one.groups[index] === group);
      cell.classList.toggle("self", index === i);
      cell.tabIndex = index === (one.cells.has(i) ? i : 0) ? 0 : -1;
    }
    const { tensor } = one;
    const [n, c, l] = [Math.floor(i / (tensor.channels * tensor.positions)), Math.floor(i / tensor.positions) % tensor.channels, i % tensor.positions];
    const value = `x[${n}, ${c}, ${l}] = ${format(tensor.values[i], 4)}`;
    if (group < 0) {
      one.readout.replaceChildren(html("strong", { text: `${value} is masked. ` }), "It counts nowhere and becomes 0.");
      return;
    }
    const others = one.groups.filter((each) => each === group).length - 1;
    const centres = one.p.row.family === "moments" && !one.p.givenMean;
    const partners = others === 0 ? "shares with nobody. " : `shares with ${others} other${others > 1 ? "s" : ""}${one.tell ? `: ${one.tell(n, c, l)}` : ""}. `;
    one.readout.replaceChildren(html("strong", { text: `${value}, group ${letter(group)}, ` }), partners, statistics(one, one.group(i)), "it becomes ",
      html("strong", { text: format(one.value(i), 4) }), others === 0 && centres ? ", whatever it was." : ".");
  }

  function draw(state, view) {
    const { tensor, list } = panels(state, view);
    const drawn = list.map((one) => grid(one, (i) => { view.selected = i; drawn.forEach((each) => tell(each, i)); }));
    document.getElementById("sharing-body").replaceChildren(...drawn.map((one) => one.node));
    const first = drawn[drawn.length - 1].cells.has(view.selected) ? view.selected : 0;
    drawn.forEach((one) => tell(one, first));
    const cut = tensor.samples > MOST.samples || tensor.channels > MOST.channels || tensor.positions > MOST.positions;
    const size = `${tensor.samples} samples × ${tensor.channels} channels × ${tensor.positions} position${tensor.positions === 1 ? "" : "s"}`;
    document.getElementById("sharing-note").textContent = (tensor.made
      ? `Your vector is position 0 of sample 0 in a small tensor made of its numbers: they move on by one at each position, and sample 1 is sample 0 doubled.`
      : `Your tensor as ${size}.`) + (cut ? " Only its first cells are drawn; the statistics are those of all." : "") + (state.mask ? " Cells struck through are masked: they share with nobody and count nowhere." : "");
  }

  Object.assign(window.evenkeel, { sharing: { draw } });
})();

// The page: state in, sections out. Every change computes everything again.
(function () {
  "use strict";
  const { html, format, bars } = window.evenkeel.draw;
  const { product, missing, shapeOf, flatten, coordinates, defaultUpstream, prepare } = window.evenkeel.arithmetic;
  const { mathml, walk, words, telling, from, commas, editor, sharing, flow } = window.evenkeel;
  const { fromSeed, toConfig, changeNorm, command, encode, decode, has, layout } = window.evenkeel.state;
  const seed = JSON.parse(document.getElementById("seed").textContent);
  const start = fromSeed(seed);
  const at = (id) => document.getElementById(id);
  const INLINE = 6; // as many as a formula writes out
  // Comparisons, which the result does not need; and what the gradient's picture tells.
  const BESIDE = ["sample_variance", "sample_std", "eps_effect"];
  const ASIDE = ["share_one", "share_xhat", "share_kept", "finite_difference"];
  const capital = (text) => text[0].toUpperCase() + text.slice(1);
  let state = structuredClone(start);
  const view = { channelLast: false, whole: false, selected: 0 };

  // All of a step's numbers, where its formula could not hold them: those of one group, and few of many.
  function allOf(step) {
    const numbers = flatten(step.value);
    const shape = shapeOf(step.value);
    if (step.id === "finite_difference") return differences(step.value);
    if (step.id === "groups" && numbers.every((group) => group <= 0)) {
      const text = telling.tell(words.phrases.one_group, from({ members: numbers.filter((group) => group === 0).length }));
      return html("p", { class: "value", text });
    }
    if (numbers.length === 1 || (shape.length === 1 && numbers.length <= INLINE)) return null;
    const details = html("details", { class: "value", "data-step": step.id }, [html("summary", { text: `all ${numbers.length} numbers` })]);
    details.addEventListener("toggle", () => { if (details.open && details.children.length === 1) details.append(table(numbers, shape)); });
    return details;
  }

  function table(numbers, shape) {
    const columns = shape.length > 1 ? shape[shape.length - 1] : Math.min(8, numbers.length);
    const leading = shape.slice(0, -1);
    const body = html("table");
    for (let first = 0; first < numbers.length; first += columns) {
      const label = leading.length ? `[${coordinates(first / columns, leading).join(", ")}]` : String(first);
      body.append(html("tr", {}, [html("th", { scope: "row", text: label }), ...numbers.slice(first, first + columns).map((value) => html("td", { text: format(value, 5) }))]));
    }
    return html("div", { class: "value" }, [body]);
  }

  function differences(rows) {
    const body = html("table", {}, [html("tr", {}, ["element", "dx", "by differences"].map((text) => html("th", { scope: "col", text })))]);
    for (const [index, exact, numeric] of rows.map((row) => row.map(Number))) {
      const name = state.shape.length > 1 ? `[${coordinates(index, state.shape).join(", ")}]` : String(index);
      body.append(html("tr", {}, [name, format(exact, 8), format(numeric, 8)].map((text) => html("td", { text }))));
    }
    return html("div", { class: "value" }, [body]);
  }

  // The formula, the formula with numbers, and what it means. An output equal to x̂ is not written twice.
  function stepItem(step, repeats) {
    // A symbol alone says no more than the title.
    const symbol = step.formula.length < 2;
    const told = step.id === "groups" ? null : html("div", { class: "formula numbers", html: mathml(step.substituted) });
    return html("li", { id: `step-${step.id}` }, [
      html("h3", { text: step.title }),
      html("div", { class: "work" }, [
        symbol || step.id === "groups" ? null : html("div", { class: "formula", html: mathml(step.formula) }),
        repeats ? null : told, repeats ? null : allOf(step),
      ]),
      html("p", { class: "meaning", text: step.meaning }),
    ]);
  }

  // A formula that scrolls sideways must be reachable with the keyboard.
  function focusable() {
    for (const box of document.querySelectorAll(".formula, .grid-box, .tensor, div.value")) {
      if (box.scrollWidth > box.clientWidth + 1 && !box.querySelector("input, [tabindex]")) {
        box.tabIndex = 0;
        box.setAttribute("role", "region");
        box.setAttribute("aria-label", "scrolls sideways");
      }
    }
  }

  function list(id, steps) {
    const open = new Set([...at(id).querySelectorAll("details[open]")].map((details) => details.dataset.step));
    const same = (one, other) => Boolean(one && other) && JSON.stringify(one.value) === JSON.stringify(other.value);
    const last = steps.find(({ id: name }) => name === "output");
    const repeated = same(last, steps.find(({ id: name }) => name === "normalized"));
    at(id).replaceChildren(...steps.map((one) => stepItem(one, one === last && repeated)));
    for (const details of at(id).querySelectorAll("details")) details.open = open.has(details.dataset.step);
  }

  // Steps that fold away, named by their titles.
  function fold(id, steps) {
    at(id).hidden = !steps.length;
    at(id).querySelector("summary").textContent = steps.map(({ title }, i) => {
      const short = title.replace(/,.*| side by side/, "");
      return i ? short[0].toLowerCase() + short.slice(1) : short;
    }).join(" · ");
    list(`${id}-steps`, steps);
  }

  // The checks fold away while all hold.
  function drawChecks(checks) {
    const failed = checks.filter(({ passed }) => !passed).length;
    const many = `${checks.length} check${checks.length === 1 ? "" : "s"}`;
    at("checked").hidden = !checks.length;
    at("checked").querySelector("summary").textContent = failed ? `✗ ${failed} of ${many} fail${failed === 1 ? "s" : ""}` : `✓ ${many} hold${checks.length === 1 ? "s" : ""}`;
    if (failed) at("checked").open = true;
    at("checks").replaceChildren(...checks.map(checkItem));
  }

  const step = (explanation, id) => { const one = explanation.steps.find((each) => each.id === id); return one ? flatten(one.value) : null; };

  function lead(explanation, members) {
    const { name } = words.norms[state.norm];
    const where = explanation.count > 1 ? `, group ${state.shown} of ${explanation.count}` : "";
    return `${capital(name)} of ${members.length} number${members.length === 1 ? "" : "s"}${where}, computed as you type.`;
  }

  function checkItem(check) {
    return html("li", {}, [html("span", { class: "mark", text: check.passed ? "✓" : "✗", role: "img", "aria-label": check.passed ? "holds" : "fails" }),
      html("span", {}, [`${capital(check.title)}: ${format(check.value, 6)}, expected ${format(check.expected, 6)}`, html("span", { class: "small", text: check.note })])]);
  }

  // What only Python can check holds for the numbers the page started with.
  function startChecks() {
    if (!seed.checks || JSON.stringify(state) !== JSON.stringify(start)) return [];
    return seed.checks;
  }

  const REMOVED = { moments: "Adding a constant to all inputs, or stretching them, leaves the output as it was, so the gradient has nothing to say about these two directions: what it had along them is removed.",
    rms: "Stretching all inputs leaves the output as it was, so the gradient has nothing to say about that direction: what it had along x̂ is removed." };

  function drawBackward(explanation, members) {
    const body = at("backward-body");
    if (!state.backward) {
      at("backward-lead").textContent = "The gradient is computed with the same statistics. Switch it on to follow it, step by step, on your numbers.";
      body.replaceChildren(html("button", { type: "button", text: "Compute the backward pass", onclick: () => { state.backward = true; rebuild(); } }));
      return;
    }
    const of = (id) => { const values = step(explanation, id); return values && members.map((i) => values[i]); };
    const group = (id) => { const values = step(explanation, id); return values && values[state.shown]; };
    const projected = of("projected");
    const rms = state.norm === "rms";
    at("backward-lead").textContent = projected
      ? `${rms ? REMOVED.rms : REMOVED.moments} Here ${rms ? "" : `${format(group("share_one"), 3)} % of its squared length lies along 1 and `}${format(group("share_xhat"), 3)} % along x̂; ${format(group("share_kept"), 3)} % passes.`
      : "No statistic of these numbers is involved in a way that removes a direction; the gradient is scaled element by element, and at the ends of min-max shared.";
    const rows = [{ name: "ĝ, what arrives", values: of("g_hat"), colour: "var(--series4)" }];
    if (projected) {
      const [a, b, hats] = [rms ? 0 : group("mean_g"), group("mean_g_xhat"), of("normalized")];
      if (!rms) rows.push({ name: "removed along 1", values: members.map(() => a), colour: "var(--series5)" });
      const along = members.map((_, i) => rows[0].values[i] - (rms ? 0 : a) - projected[i]);
      rows.push({ name: "removed along x̂", values: along, colour: "var(--series1)" });
      rows.push({ name: "p, what is left", values: projected, colour: "var(--series3)" });
    }
    rows.push({ name: "dx, at the input", values: of("dx"), colour: "var(--series3)" });
    const labels = members.map((i) => `element ${i}`);
    const error = html("p", { class: "error", role: "alert", hidden: true });
    if (!body.querySelector(".upstream") || body.dataset.shape !== state.shape.join()) {
      body.dataset.shape = state.shape.join();
      body.replaceChildren(upstreamEditor(explanation, error), error, html("div", { class: "bars" }), html("ol", { class: "steps", id: "backward-steps" }),
        html("details", { id: "aside" }, [html("summary"), html("ol", { class: "steps beside", id: "aside-steps" })]));
    } else for (const input of body.querySelectorAll(".upstream input")) input.refresh();
    // One scale for the gradients; dx, divided by d, has its own.
    const shown = rows.slice(0, -1).map((row) => ({ ...row, values: row.values.slice(0, 64) }));
    body.querySelector(".bars").replaceChildren(bars(shown, labels), bars([{ ...rows[rows.length - 1], values: rows[rows.length - 1].values.slice(0, 64) }], labels));
    const steps = explanation.steps.filter((one) => one.id in words.backward && one.id !== "upstream");
    list("backward-steps", steps.filter((one) => !ASIDE.includes(one.id)));
    fold("aside", steps.filter((one) => ASIDE.includes(one.id)));
  }

  function upstreamEditor(explanation, error) {
    const grid = html("table", { class: "grid upstream" });
    const values = () => {
      if (!state.upstream) state.upstream = defaultUpstream(state.x.length);
      return state.upstream;
    };
    const columns = state.shape.length > 1 ? state.shape[state.shape.length - 1] : Math.min(8, state.x.length);
    const present = () => state.upstream || defaultUpstream(state.x.length);
    for (let first = 0; first < state.x.length; first += columns) {
      grid.append(html("tr", {}, Array.from({ length: Math.min(columns, state.x.length - first) }, (_, c) => html("td", {}, [
        editor.field({ label: `upstream gradient ${first + c}`, get: () => present()[first + c], set: (value) => { values()[first + c] = value; update(); }, error }),
      ]))));
    }
    grid.addEventListener("keydown", editor.arrows);
    const box = html("div", { class: "grid-box" }, [grid]);
    return html("details", { open: state.x.length <= 16 }, [html("summary", { text: "Upstream gradient g (change it)" }), box]);
  }

  function drawRest(members, explanation, numbers) {
    const x = members.map((i) => state.x[i]);
    at("line").hidden = !x.length;
    if (!x.length) return;
    flow.drawLine(numbers, members, (id) => { const values = step(explanation, id); return values && members.map((i) => values[i]); });
    flow.drawAgainst(x, state);
    flow.drawFlow(x, state);
    sharing.draw(state, view);
  }

  function update() {
    const explanation = walk(toConfig(state));
    const numbers = prepare(toConfig(state));
    const members = numbers.members[state.shown];
    explanation.count = numbers.count;
    at("title").textContent = `${capital(words.norms[state.norm].name)}, step by step`;
    at("lead").textContent = lead(explanation, members);
    at("notes").replaceChildren(...explanation.notes.map((text) => html("li", { text })));
    const forward = explanation.steps.filter((one) => one.id in words.forward && one.id !== "input");
    const beside = forward.filter((one) => BESIDE.includes(one.id) && !(state.correction && one.id !== "eps_effect" && has(state, "correction")));
    list("forward", forward.filter((one) => !beside.includes(one)));
    fold("beside", beside);
    at("input-note").textContent = explanation.steps[0].meaning;
    drawChecks([...explanation.checks, ...startChecks()]);
    editor.showResults(step(explanation, "output"));
    editor.refresh();
    drawBackward(explanation, members);
    drawRest(members, explanation, numbers);
    at("footer").textContent = "Everything on this page is computed in your browser in float64; nothing is sent anywhere." + (state.dtype === "float64" ? "" : ` The numbers came from ${state.dtype}; what you type is not rounded to it.`);
    // In a notebook's frame the page has no address of its own.
    if (window.location.protocol !== "about:") window.history.replaceState(null, "", JSON.stringify(state) === JSON.stringify(start) ? window.location.pathname : encode(state));
    focusable();
    document.documentElement.dataset.updates = String(Number(document.documentElement.dataset.updates || 0) + 1);
    window.evenkeel.current = explanation;
  }

  function buildShown() {
    const { count } = prepare(toConfig(state));
    at("shown-row").hidden = count < 2;
    at("shown").replaceChildren(...Array.from({ length: count }, (_, g) => html("option", { value: g, text: g, selected: g === state.shown })));
  }

  // After a change of structure: the fields are made anew, and the focus goes back to where it was.
  function rebuild() {
    const focus = document.activeElement && (document.activeElement.id || document.activeElement.getAttribute("aria-label") || document.activeElement.textContent);
    at("norm").value = state.norm;
    at("eps-row").hidden = !has(state, "eps");
    at("affine").hidden = !has(state, "weight");
    at("want-backward").checked = state.backward;
    at("eps-mode").value = state.mode;
    const error = at("values-error");
    editor.buildValues(state, update, rebuild, error, at("values"));
    editor.buildOptions(state, update, rebuild, error, at("options"));
    editor.buildParameters(state, update, rebuild, error, at("parameters"));
    buildEpsilon();
    buildShown();
    buildSharing();
    delete at("backward-body").dataset.shape;
    update();
    const again = [...document.querySelectorAll("#form input, #form select, #form button")].find((one) => [one.id, one.getAttribute("aria-label"), one.textContent].includes(focus));
    if (focus && again && document.activeElement === document.body) again.focus();
  }

  function buildEpsilon() {
    const error = at("eps-error");
    const input = editor.field({ id: "eps", label: "ε", get: () => state.eps, set: (value) => { state.eps = value; slide(); update(); }, error,
      check: (value) => (Number.isFinite(value) && value >= 0 ? "" : "ε must be a finite number that is not negative") });
    at("eps").replaceWith(input);
    const slide = () => { at("eps-slider").value = state.eps > 0 ? Math.log10(state.eps) : -12; };
    slide();
    at("eps-slider").setAttribute("aria-valuetext", String(state.eps));
  }

  function buildSharing() {
    const options = at("sharing-options");
    options.replaceChildren(["layer", "rms"].includes(state.norm) ? "" : html("label", { class: "field" }, ["LayerNorm over", editor.select([["", "the channels of one position (transformers)"], ["1", "a whole sample (images)"]], view.whole ? "1" : "", (value) => { view.whole = value === "1"; update(); }, "LayerNorm over")]));
    if (state.shape.length > 2 && missing(layout(state).channel_axis)) options.append(html("label", { class: "field" }, ["channels are axis", editor.select([["", "1"], ["1", state.shape.length - 1]], view.channelLast ? "1" : "", (value) => { view.channelLast = value === "1"; view.selected = 0; update(); }, "channels are axis")]));
  }

  function wire() {
    at("norm").append(...Object.entries(words.norms).map(([key, { name }]) => html("option", { value: key, text: capital(name) })));
    at("eps-mode").append(...Object.entries(words.choices.eps_mode).map(([key, text]) => html("option", { value: key, text })));
    at("norm").addEventListener("change", () => { changeNorm(state, at("norm").value); rebuild(); });
    at("eps-slider").addEventListener("input", () => {
      state.eps = Number((10 ** Number(at("eps-slider").value)).toPrecision(2));
      at("eps-slider").setAttribute("aria-valuetext", String(state.eps));
      at("eps").value = String(state.eps);
      editor.mark(at("eps"), at("eps-error"), "");
      update();
    });
    at("eps-mode").addEventListener("change", () => { state.mode = at("eps-mode").value; update(); });
    at("shown").addEventListener("change", () => { state.shown = Number(at("shown").value); update(); });
    at("want-backward").addEventListener("change", () => { state.backward = at("want-backward").checked; rebuild(); });
    at("form").addEventListener("submit", (event) => event.preventDefault());
    at("reset").addEventListener("click", () => { state = structuredClone(start); view.selected = 0; rebuild(); at("status").textContent = "Back at the numbers this page started with."; });
    at("copy").addEventListener("click", copy);
    for (const link of document.querySelectorAll("nav a")) {
      link.addEventListener("click", (event) => {
        event.preventDefault();
        const target = document.querySelector(link.getAttribute("href"));
        target.scrollIntoView();
        target.focus({ preventScroll: true });
      });
    }
  }

  // The line is shown as well: a page opened from a file may not be allowed to write to the clipboard.
  function copy() {
    const line = command(state);
    const tell = (text) => at("status").replaceChildren(text, html("code", { id: "command", text: line }));
    if (!navigator.clipboard) { tell("The command: "); return; }
    navigator.clipboard.writeText(line).then(() => tell("Copied: "), () => tell("The command: "));
  }

  function describeWhole() {
    if (!seed.whole) return;
    const { shape, group, statistics } = seed.whole;
    const numbers = statistics.map(([title, value]) => `${title.toLowerCase()} ${format(Number(value), 6)}`).join(", ");
    at("whole").hidden = false;
    at("whole").textContent = `The input has ${commas(product(shape))} numbers (${shape.join(" × ")}). This page works on a part of it, ${start.shape.join(" × ")}, as if it were all, so its statistics are the part's.` +
      (numbers ? ` Those of the whole, computed by Python for its group ${group}: ${numbers}.` : "");
  }

  let width = window.innerWidth;
  window.addEventListener("resize", () => {
    // Phones report a resize whenever their address bar hides; only a new width needs new figures.
    if (window.innerWidth !== width) {
      width = window.innerWidth;
      update();
    }
  });
  view.channelLast = ["layer", "rms"].includes(start.norm) && start.shape.length > 2;
  wire();
  describeWhole();
  state = decode(window.location.hash, start) || state;
  rebuild();
})();

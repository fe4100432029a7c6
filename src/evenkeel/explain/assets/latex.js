// The part of LaTeX that the steps are written in, as MathML. Broken before each relation so that lines can wrap.
(function () {
  "use strict";
  const SYMBOLS = {
    alpha: "α", beta: "β", gamma: "γ", epsilon: "ε", mu: "μ", sigma: "σ", partial: "∂", infty: "∞", dots: "…",
  };
  const OPERATORS = { cdot: "·", times: "×", approx: "≈", sum: "∑", "%": "%" };
  const NAMES = new Set(["max", "min", "tanh"]);
  const SPACES = { ",": ".17em", ";": ".28em", quad: "1em" };
  const OPERATES = /^(\+|-|\\cdot)$/;
  const BREAKS = new Set(["=", "\\approx"]);

  function tokens(source) {
    return source.match(/\\[a-zA-Z]+|\\.|\d+(?:\.\d+)?|\s+|[^]/gu) || [];
  }

  const escape = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const tag = (name, content, attributes = "") => `<${name}${attributes}>${content}</${name}>`;

  // The raw text of a group: spaces inside \text{...} count.
  function rawGroup(list) {
    if (list[list.at] !== "{") return list[list.at++] || "";
    let depth = 0;
    let text = "";
    for (; list.at < list.length; list.at++) {
      const token = list[list.at];
      if (token === "{" && depth++ === 0) continue;
      if (token === "}" && --depth === 0) { list.at++; break; }
      text += token;
    }
    return text;
  }

  function skipSpace(list) {
    while (/^\s+$/.test(list[list.at] || "")) list.at++;
  }

  function group(list) {
    skipSpace(list);
    if (list[list.at] !== "{") return atom(list);
    list.at++;
    const pieces = row(list, "}");
    list.at++;
    return pieces.length === 1 ? pieces[0].markup : tag("mrow", join(pieces));
  }

  function command(list, name) {
    if (name === "frac") return tag("mfrac", group(list) + group(list));
    if (name === "sqrt") return tag("msqrt", group(list));
    if (name === "hat") return tag("mover", group(list) + tag("mo", "^"), ' accent="true"');
    if (name === "text" || name === "mathrm") {
      skipSpace(list);
      const text = rawGroup(list).replace(/^\s|\s$/g, "\u00a0");
      // Not <mtext>: that is space-like, and an operator beside it loses its own space.
      return tag("mi", escape(text), ' mathvariant="normal"');
    }
    if (name === "left" || name === "right") {
      skipSpace(list);
      return tag("mo", escape(list[list.at++]), ' stretchy="true"');
    }
    if (name in SPACES) return `<mspace width="${SPACES[name]}"></mspace>`;
    if (NAMES.has(name)) return tag("mi", name, ' mathvariant="normal"');
    if (name in OPERATORS) return tag("mo", OPERATORS[name], name === "sum" ? ' movablelimits="false"' : "");
    if (name in SYMBOLS) return tag("mi", SYMBOLS[name], name === "infty" || name === "dots" ? ' mathvariant="normal"' : "");
    return tag("mtext", escape("\\" + name), ' class="unknown"');
  }

  function atom(list) {
    skipSpace(list);
    const token = list[list.at++];
    if (token === undefined) return "<mrow></mrow>";
    if (token === "{") { list.at--; return group(list); }
    if (token.startsWith("\\") && token.length > 1) return command(list, token.slice(1));
    if (/^\d/.test(token)) return tag("mn", token);
    if (/^\p{L}$/u.test(token)) return tag("mi", escape(token));
    if (token === "-") return tag("mo", "−", sign(list) ? ' form="prefix" lspace="0" rspace="0"' : "");
    if (token === "'") return tag("mo", "′");
    return tag("mo", escape(token), /[()[\]|]/.test(token) ? ' stretchy="false"' : "");
  }

  // Whether the minus just read is a sign rather than a subtraction: nothing to subtract from stands before it.
  function sign(list) {
    let before = list.at - 2;
    while (before >= 0 && /^\s+$/.test(list[before])) before--;
    return before < 0 || /^([[({,+\-=]|\\approx|\\cdot|\\times)$/.test(list[before]);
  }

  function scripts(list, base) {
    let lower = null;
    let upper = null;
    for (;;) {
      skipSpace(list);
      if (list[list.at] === "_" && lower === null) { list.at++; lower = group(list); }
      else if (list[list.at] === "^" && upper === null) { list.at++; upper = group(list); }
      else break;
    }
    if (lower === null && upper === null) return base;
    const sum = base.includes("∑");
    if (lower !== null && upper !== null) return tag(sum ? "munderover" : "msubsup", base + lower + upper);
    if (lower !== null) return tag(sum ? "munder" : "msub", base + lower);
    return tag(sum ? "mover" : "msup", base + upper);
  }

  // The pieces up to a closing token, each with its source so that relations can be found.
  function row(list, end) {
    const pieces = [];
    while (list.at < list.length && list[list.at] !== end) {
      if (/^\s+$/.test(list[list.at])) { list.at++; continue; }
      const start = list.at;
      const base = list[list.at] === "_" || list[list.at] === "^" ? "<mrow></mrow>" : atom(list);
      pieces.push({ markup: scripts(list, base), source: list.slice(start, list.at).join("").trim() });
    }
    return pieces;
  }

  const join = (pieces) => pieces.map((piece) => piece.markup).join("");

  // One line of LaTeX as HTML: several <math> elements, so that a line can break before a relation or an operator and
  // after a comma.
  function markup(latex) {
    const list = tokens(latex);
    list.at = 0;
    const parts = [[]];
    let depth = 0;
    let comma = false;
    for (const piece of row(list, undefined)) {
      depth += /^(\\left|[([]$)/.test(piece.source) ? 1 : /^(\\right|[)\]])/.test(piece.source) ? -1 : 0;
      const before = depth === 0 && (BREAKS.has(piece.source) || (OPERATES.test(piece.source) && !piece.markup.includes("prefix")));
      const breaks = (before || comma) && parts[parts.length - 1].length > 0;
      if (breaks) parts.push([]);
      comma = piece.source === ",";
      // At the start of its element an operator would be taken for a sign, and lose its space.
      const spaced = breaks && before ? piece.markup.replace("<mo>", '<mo form="infix" lspace="0" rspace="0.25em">') : piece.markup;
      parts[parts.length - 1].push({ ...piece, markup: spaced });
    }
    return parts.map((part) => tag("span", tag("math", tag("mrow", join(part)), ' displaystyle="true"'))).join(" ");
  }

  window.evenkeel.mathml = markup;
})();

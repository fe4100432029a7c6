(function () {
  "use strict";
  const payload = JSON.parse(document.getElementById("payload").textContent);
  const plots = Array.from(document.querySelectorAll(".plot"));
  const toDark = new Map(Object.keys(payload.light).map((key) => [payload.light[key], payload.dark[key]]));
  const LABEL_GAP = 14;
  const LABEL_LINE = 16;
  const NOTE_LINE = 16;
  const dark = window.evenkeelTheme.dark;

  // Only values under a key that names a colour are swapped: a series may be called "#000000".
  function themed(value) {
    if (!dark()) return JSON.parse(JSON.stringify(value));
    return JSON.parse(JSON.stringify(value), (key, item) => (/color$/i.test(key) && toDark.get(item)) || item);
  }

  const ruler = document.createElement("canvas").getContext("2d");
  function textWidth(text, size) {
    const plain = new DOMParser().parseFromString(text, "text/html").documentElement.textContent;
    ruler.font = size + "px " + payload.font;
    return ruler.measureText(plain).width;
  }

  // Push labels down until none overlaps the one above, then up until the last is inside.
  function spread(labels, top, bottom) {
    labels.sort((a, b) => a.pixelY - b.pixelY);
    let edge = top;
    for (const label of labels) {
      label.top = Math.max(label.pixelY - label.height / 2, edge);
      edge = label.top + label.height;
    }
    edge = bottom;
    for (const label of labels.slice().reverse()) {
      label.top = Math.min(label.top, edge - label.height);
      edge = label.top;
    }
  }

  function niceStep(span, most) {
    for (let power = 1; ; power *= 10) {
      for (const step of [1, 2, 5]) if (span / (step * power) <= most) return step * power;
    }
  }

  // Whole powers over many decades, 1, 2 and 5 over few. Plotly's own ticks come in several sizes of type.
  function logTicks([low, high]) {
    const many = high - low > 2;
    const step = many ? niceStep(high - low, 7) : 1;
    const tickvals = [];
    const ticktext = [];
    for (let power = Math.floor(low / step) * step; power <= high; power += step) {
      for (const digit of many ? [1] : [1, 2, 5]) {
        const value = Number(digit + "e" + power);
        if (Math.log10(value) < low || Math.log10(value) > high) continue;
        tickvals.push(value);
        const short = Math.abs(power) <= 4;
        ticktext.push(short ? String(value) : (digit > 1 ? digit + "×" : "") + "10<sup>" + power + "</sup>");
      }
    }
    return { tickmode: "array", tickvals, ticktext };
  }

  // Plotly's own choice can leave a small plot with one tick.
  function evenStep(span, most) {
    const power = 10 ** Math.floor(Math.log10(span / most));
    return [1, 2, 2.5, 5, 10].map((step) => step * power).find((step) => span / step <= most);
  }

  function evenTicks(low, high, most) {
    const step = evenStep(high - low, most);
    const tickvals = [];
    for (let n = Math.ceil(low / step); n * step <= high; n += 1) tickvals.push(Number((n * step).toPrecision(6)));
    return { tickmode: "array", tickvals, ticktext: tickvals.map((value) => value.toLocaleString("en")) };
  }

  function axes(layout, hints, width, narrow) {
    const most = { xaxis: Math.max(4, Math.floor(width / 70)), yaxis: narrow ? 5 : 7 };
    for (const name of ["xaxis", "yaxis"]) {
      const axis = layout[name];
      const [low, high] = axis.range;
      if (axis.tickvals || axis.showticklabels === false) continue;
      if (axis.type === "log") {
        const ticks = logTicks(axis.range);
        Object.assign(axis, ticks.tickvals.length > 2 ? ticks : evenTicks(10 ** low, 10 ** high, most[name]));
      } else if (name === "xaxis" && hints.integer_x) {
        axis.dtick = niceStep(high - low, Math.max(5, Math.floor(width / 40)));
      } else if (high > low) {
        axis.dtick = evenStep(high - low, most[name]);
      }
    }
  }

  // The vertical title is set flat above the axis, where it needs no turned head and no width.
  function flatTitle(layout, left) {
    const text = layout.yaxis.title.text;
    layout.yaxis.title.text = "";
    if (!text) return [];
    return [{
      text, xref: "paper", yref: "paper", x: 0, y: 1, xanchor: "left", yanchor: "bottom", xshift: -left + 2, yshift: 6,
      showarrow: false, font: { color: layout.yaxis.color },
    }];
  }

  function placeLabels(labels, layout, width, size) {
    const margin = layout.margin;
    const plotWidth = width - margin.l - margin.r;
    const plotHeight = layout.height - margin.t - margin.b;
    const [x0, x1] = layout.xaxis.range;
    const [y0, y1] = layout.yaxis.range;
    for (const label of labels) {
      label.pixelX = margin.l + ((label.x - x0) / (x1 - x0)) * plotWidth;
      label.pixelY = margin.t + ((y1 - label.y) / (y1 - y0)) * plotHeight;
    }
    // The lowest label may reach the tick labels but not the title of the axis under them.
    spread(labels, 4, layout.height - margin.b + 16);
    return labels.map((label) => {
      const note = label.note.map((line) => '<br><span style="font-size:' + (size - 2) + 'px">' + line + "</span>");
      return {
        text: '<span style="color:' + label.color + '">' + label.glyph + "</span> " + label.name + note.join(""),
        x: label.x, y: label.y, xref: "x", yref: "y", align: "left", xanchor: "left", yanchor: "middle",
        ax: width - margin.r + LABEL_GAP - label.pixelX, ay: label.top + label.height / 2 - label.pixelY,
        showarrow: true, arrowhead: 0, arrowwidth: 1, arrowcolor: label.color, standoff: 5, borderpad: 0,
        font: { size },
      };
    });
  }

  function draw(plot) {
    const panel = payload.panels[Number(plot.dataset.panel)];
    const width = plot.clientWidth;
    if (!width) return;
    const narrow = width < 440;
    const size = narrow ? 12 : 13;
    const { data, layout } = themed(panel.spec);
    const labels = themed(panel.labels);
    layout.font.size = size;
    layout.width = width;
    for (const label of labels) {
      label.height = LABEL_LINE + NOTE_LINE * label.note.length + 2;
      label.width = Math.max(textWidth("● " + label.name, size), ...label.note.map((line) => textWidth(line, size - 2)));
    }
    const needed = labels.reduce((sum, label) => sum + label.height, 0);
    layout.height = Math.max(layout.height, needed + 36);
    const widest = labels.reduce((most, label) => Math.max(most, label.width), 0);
    const rows = layout.yaxis.showticklabels === false;
    layout.margin = {
      l: rows ? 14 : narrow ? 52 : 60, t: rows ? 8 : 30, b: 46, pad: 0,
      r: labels.length ? Math.ceil(widest) + LABEL_GAP + 8 : 12,
    };
    // The name of a level needs a plot that is wider than itself.
    const plain = (note) => note.name !== "level" || textWidth(note.text, 12) < width - layout.margin.l - layout.margin.r;
    layout.annotations = (layout.annotations || []).filter(plain);
    axes(layout, panel.hints, width - layout.margin.l - layout.margin.r, narrow);
    layout.annotations = layout.annotations.concat(
      flatTitle(layout, layout.margin.l), placeLabels(labels, layout, width, size));
    plot.style.height = layout.height + "px";
    window.Plotly.react(plot, data, layout, { displayModeBar: false, showTips: false, responsive: false });
  }

  function drawAll() {
    plots.forEach(draw);
    document.documentElement.dataset.drawn = String(plots.length);
  }

  // What is drawn now, on the page's own colour: on a transparent ground it could not be read everywhere.
  function picture(plot, format) {
    const layout = Object.assign({}, plot.layout, { paper_bgcolor: (dark() ? payload.dark : payload.light).surface });
    const { width, height } = layout;
    return window.Plotly.toImage({ data: plot.data, layout }, { format, width, height, scale: format === "png" ? 2 : 1 });
  }

  async function savePicture(button, plot) {
    const file = button.dataset.file;
    button.disabled = true;
    try {
      const link = document.createElement("a");
      link.href = await picture(plot, file.split(".").pop());
      link.download = file;
      link.click();
    } catch (error) {
      explain("This browser cannot save " + file + " (" + error.message + ").");
    } finally {
      button.disabled = false;
      button.focus();
    }
  }

  function offerPictures() {
    const offers = document.querySelectorAll(".pictures");
    offers.forEach((offer, index) => {
      offer.hidden = false;
      for (const button of offer.querySelectorAll("button")) {
        button.addEventListener("click", () => savePicture(button, plots[index]));
      }
    });
  }

  async function loadPlotly() {
    const packed = Uint8Array.from(atob(document.getElementById("plotly").textContent), (c) => c.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(stream).text();
    document.head.append(script);
    if (!window.Plotly) throw new Error("the drawing library did not start");
  }

  function explain(text) {
    const notice = document.getElementById("notice");
    notice.textContent = text;
    notice.hidden = false;
    notice.scrollIntoView({ block: "nearest" });
  }

  function explainFailure(error) {
    explain(
      "This browser cannot draw the figures (" + error.message + "). Their numbers are in the tables under each title.");
    for (const plot of plots) plot.style.display = "none";
    for (const details of document.querySelectorAll("figure details")) details.open = true;
  }

  // A table that scrolls sideways must be reachable with the keyboard.
  function focusableScroll() {
    for (const box of document.querySelectorAll(".scroll")) {
      if (box.scrollWidth > box.clientWidth) {
        box.tabIndex = 0;
        box.setAttribute("role", "region");
        box.setAttribute("aria-label", box.querySelector("caption").textContent || "table");
      }
    }
  }

  document.addEventListener("themechange", () => {
    if (window.Plotly) drawAll();
  });
  document.addEventListener("toggle", focusableScroll, true);
  focusableScroll();
  if (!plots.length) return;
  loadPlotly().then(() => {
    drawAll();
    offerPictures();
    let last = window.innerWidth;
    window.addEventListener("resize", () => {
      // Phones report a resize whenever their address bar hides; only a new width needs a new drawing.
      if (window.innerWidth !== last) {
        last = window.innerWidth;
        drawAll();
      }
    });
  }).catch(explainFailure);
})();

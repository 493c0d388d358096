// Draws every chart of the page at the width it has; colours of text and lines come from the style sheet.
"use strict";

(() => {
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const data = read("report-data");
  const specs = read("report-specs");
  const views = {};

  /** Inner widths: of a single view, of the columns of a facet, of the rows of a concatenation. */
  function sized(spec, width, inner) {
    const own = { ...spec, datasets: Object.fromEntries(spec.uses.map((name) => [name, data[name]])) };
    delete own.uses;
    if (own.facet) {
      own.columns = columns(spec, width);
      own.spec = { ...own.spec, width: inner };
    } else if (own.vconcat) {
      own.vconcat = own.vconcat.map((row) => ({ ...row, width: inner }));
    } else {
      own.width = width;
      own.autosize = { type: "fit-x", contains: "padding" };
    }
    return own;
  }

  const columns = (spec, width) => Math.max(1, Math.min(spec.columns || 1, Math.floor(width / 240)));

  async function draw(figure) {
    const holder = figure.querySelector(".chart");
    const spec = specs[figure.id];
    const width = Math.max(holder.parentElement.clientWidth, Number(figure.dataset.leastWidth)) - 2;
    const embed = (inner) =>
      vegaEmbed(holder, sized(spec, width, inner), { actions: false, renderer: "svg", config: read("report-config") });
    const across = spec.facet ? columns(spec, width) : 1;
    let inner = Math.floor(width / across) - 40;
    views[figure.id]?.finalize();
    let drawn = await embed(inner);
    if (spec.facet || spec.vconcat) {
      // Axes take a width that only drawing tells.
      const excess = holder.querySelector("svg").width.baseVal.value - width;
      if (Math.abs(excess) > 1) {
        inner -= Math.ceil(excess / across);
        drawn.finalize();
        drawn = await embed(Math.max(40, inner));
      }
    }
    views[figure.id] = drawn.view;
  }

  const form = document.getElementById("explorer-form");
  const explore = explorer.start(form, document.getElementById("explorer-table"), () => views.explorer);

  async function drawAll() {
    for (const figure of document.querySelectorAll("figure")) await draw(figure);
    explore();
  }

  let waiting;
  let last = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === last) return;
    last = innerWidth;
    clearTimeout(waiting);
    waiting = setTimeout(() => (report.drawn = report.drawn.then(drawAll)), 200);
  });
  window.report = { views, drawn: drawAll() };
})();

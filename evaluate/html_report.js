"use strict";
(() => {
  const config = {
    responsive: true,
    displaylogo: false,
    // By name: by itself plotly adds a button that uploads the chart to its maker.
    modeBarButtons: [["toImage"], ["zoom2d", "pan2d"], ["resetScale2d"]],
    showSendToCloud: false,
    plotlyServerURL: "",
  };
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const charts = all(".chart");
  const hidden = new Set();

  function draw(chart) {
    if (chart.dataset.drawn) return;
    chart.dataset.drawn = "begun";
    const figure = JSON.parse(document.getElementById(chart.dataset.figure).textContent);
    Plotly.newPlot(chart, figure.data, figure.layout, config).then(() => {
      chart.dataset.drawn = "yes";
      showChosen(chart);
    });
  }

  const isShown = (chart) => !chart.closest("details:not([open])");

  // One at a time, so that the page answers while it draws.
  function drawNext() {
    const next = charts.find((chart) => !chart.dataset.drawn && isShown(chart));
    if (!next) {
      document.documentElement.dataset.charts = "drawn";
      return;
    }
    draw(next);
    setTimeout(drawNext, 0);
  }

  // Planners of the legend: shown and hidden in every chart that has them.
  function showChosen(chart) {
    if (chart.dataset.drawn !== "yes") return;
    const known = new Set(buttons.map((button) => button.dataset.planner));
    const places = chart.data.map((trace, i) => [trace.meta, i]).filter(([planner]) => known.has(planner));
    if (!places.length || chart.dataset.kind === "timeline") return;
    const visible = places.map(([planner]) => !hidden.has(planner));
    Plotly.restyle(chart, { visible }, places.map(([, i]) => i));
  }

  function choose(planner, shown) {
    if (shown) hidden.delete(planner);
    else hidden.add(planner);
  }

  function refresh() {
    for (const button of buttons) button.setAttribute("aria-pressed", String(!hidden.has(button.dataset.planner)));
    charts.forEach(showChosen);
  }

  const buttons = all(".legend button[data-planner]");
  for (const button of buttons) {
    button.addEventListener("click", () => {
      choose(button.dataset.planner, hidden.has(button.dataset.planner));
      refresh();
    });
  }
  for (const button of all(".legend button[data-all]")) {
    button.addEventListener("click", () => {
      for (const one of buttons) choose(one.dataset.planner, button.dataset.all === "show");
      refresh();
    });
  }

  // Tables: a click on a heading sorts, another one turns the order round; what has no value stays last.
  function compare(one, other, isNumber, sign) {
    if (one === null || other === null) return (one === null) - (other === null);
    return sign * (isNumber ? Number(one) - Number(other) : one.localeCompare(other));
  }

  function sort(heading) {
    const table = heading.closest("table");
    const column = [...heading.parentNode.children].indexOf(heading);
    const isNumber = heading.dataset.type === "number";
    const before = heading.getAttribute("aria-sort");
    const ascending = before ? before === "descending" : !isNumber;
    for (const other of heading.parentNode.children) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", ascending ? "ascending" : "descending");
    const rows = [...table.tBodies[0].rows];
    const value = (row) => row.cells[column].getAttribute("data-value");
    rows.sort((a, b) => compare(value(a), value(b), isNumber, ascending ? 1 : -1));
    table.tBodies[0].append(...rows);
    table.classList.add("sorted");
  }

  for (const button of all("th button")) button.addEventListener("click", () => sort(button.closest("th")));

  // The filter of the table of all rows.
  const filters = all("[data-filter]");
  function filter() {
    const wanted = filters.map((field) => field.value.trim().toLowerCase());
    let shown = 0;
    const rows = all("#all-rows tbody tr");
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      const problem = row.cells[0].getAttribute("data-value").toLowerCase();
      const fits = filters.every((field, i) =>
        !wanted[i] || (field.dataset.filter === "problem" ? problem === wanted[i] : text.includes(wanted[i])));
      row.hidden = !fits;
      shown += fits;
    }
    document.getElementById("shown-rows").textContent = `${shown} of ${rows.length} rows`;
  }
  for (const field of filters) field.addEventListener("input", filter);

  for (const details of all("details")) details.addEventListener("toggle", () => details.open && drawNext());
  window.addEventListener("beforeprint", () => {
    for (const details of all("details")) details.open = true;
    charts.forEach(draw);
    for (const chart of charts) {
      const width = Math.min(chart.clientWidth, chart.closest(".grid") ? 330 : 680);
      if (chart.layout) Plotly.relayout(chart, { width, autosize: false });
    }
  });
  window.addEventListener("afterprint", () => {
    for (const chart of charts) if (chart.layout) Plotly.relayout(chart, { width: null, autosize: true });
  });
  drawNext();
})();

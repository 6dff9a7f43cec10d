// Draws the charts with Chart.js as they come into view, those of a part of a page that
// came later by drawCharts.
const drawCharts = (() => {
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
  const number = (v) => String(Number(v.toPrecision(6))).replace("-", "−");
  const drawn = new Map(); // place of a chart → Chart

  // Whiskers of points with deviations.
  const whiskers = {
    id: "whiskers",
    afterDatasetsDraw(chart) {
      const { ctx, scales: { x, y } } = chart;
      chart.data.datasets.forEach((set, i) => {
        if (!set.deviations || !chart.isDatasetVisible(i)) return;
        ctx.save();
        ctx.strokeStyle = set.borderColor;
        ctx.lineWidth = 1.2;
        set.data.forEach((p, k) => {
          const d = set.deviations[k];
          ctx.beginPath();
          if (set.along === "x") {
            ctx.moveTo(x.getPixelForValue(p.x - d), y.getPixelForValue(p.y));
            ctx.lineTo(x.getPixelForValue(p.x + d), y.getPixelForValue(p.y));
          } else {
            ctx.moveTo(x.getPixelForValue(p.x), y.getPixelForValue(p.y - d));
            ctx.lineTo(x.getPixelForValue(p.x), y.getPixelForValue(p.y + d));
          }
          ctx.stroke();
        });
        ctx.restore();
      });
    },
  };

  function dataset(s, spec) {
    const data = [];
    for (let i = 0; i < (s.points || []).length; i += 2) data.push({ x: s.points[i], y: s.points[i + 1] });
    if (s.bars) {
      const edge = (i) => spec.x.min + (spec.x.max - spec.x.min) * i / s.bars.length;
      data.push({ x: edge(0), y: 0 });
      s.bars.forEach((y, i) => data.push({ x: edge(i), y }, { x: edge(i + 1), y }));
      data.push({ x: spec.x.max, y: 0 });
    }
    const line = colour(s.colour);
    return {
      label: s.name, data, hiddenFromLegend: s.hidden,
      deviations: s.deviations, along: spec.y.names ? "x" : "y",
      showLine: Boolean(s.width), borderColor: line, borderWidth: s.width || 0, borderDash: s.dashes || [],
      borderJoinStyle: "round",
      backgroundColor: s.fill ? line + Math.round(255 * s.fill).toString(16).padStart(2, "0") : colour("paper"),
      fill: s.fill ? "origin" : false,
      pointStyle: s.marker === "square" ? "rect" : s.marker || "circle", pointRadius: s.marker === "triangle" ? 7 : s.marker ? 4 : 0, ...(s.marker ? { clip: false } : {}), pointBorderWidth: 1.8,
      pointHoverRadius: 4, pointHitRadius: 6, pointBorderColor: line,
      pointBackgroundColor: s.marker ? line : colour("paper"),
    };
  }

  function scale(axis) {
    const times = axis.percent ? 100 : 1;
    return {
      type: axis.log ? "logarithmic" : "linear", min: axis.min, max: axis.max,
      title: { display: Boolean(axis.label), text: axis.label, color: colour("faint"), padding: 2 },
      grid: { color: axis.names ? "transparent" : colour("grid"), drawTicks: false },
      border: { display: false },
      afterBuildTicks: axis.names ? (s) => { s.ticks = axis.names.map((_, value) => ({ value })); } : axis.log ? (s) => { s.ticks = s.ticks.filter(({ value }) => Math.abs(Math.log10(value) % 1) < 1e-9); } : undefined,
      ticks: {
        color: colour("faint"), padding: 4, maxTicksLimit: 7, includeBounds: false, maxRotation: 0, autoSkip: !axis.names || axis.names.length > 12,
        callback: (v) => axis.names ? axis.names[v] : number(times * v),
      },
    };
  }

  const show = (axis, v) => axis.names ? axis.names[v] : axis.percent ? (100 * v).toFixed(2) + "%" : number(v);

  function draw(place) {
    const spec = place.spec || JSON.parse(place.querySelector("script").textContent);
    drawn.get(place)?.destroy();
    if (!place.querySelector("canvas")) place.append(document.createElement("canvas"));
    drawn.set(place, new Chart(place.querySelector("canvas"), {
      type: "scatter",
      data: { datasets: spec.series.map((s) => dataset(s, spec)) },
      plugins: [whiskers],
      options: {
        animation: false, maintainAspectRatio: false, responsive: true,
        font: { family: getComputedStyle(document.body).fontFamily },
        interaction: { mode: "nearest", intersect: false },
        scales: { x: scale(spec.x), y: scale(spec.y) },
        plugins: {
          legend: {
            position: "bottom", align: "start",
            labels: {
              color: colour("ink"), usePointStyle: true, pointStyle: "line", pointStyleWidth: 26, boxHeight: 6, padding: 8, font: { size: 11 },
              generateLabels: (chart) => Chart.defaults.plugins.legend.labels.generateLabels(chart)
                .map((item) => [item, chart.data.datasets[item.datasetIndex]])
                .filter(([, set]) => !set.hiddenFromLegend)
                .map(([item, set]) => ({ ...item, lineDash: set.borderDash, lineWidth: Math.max(set.borderWidth, 1), pointStyle: set.showLine ? "line" : set.pointStyle })),
            },
          },
          tooltip: {
            displayColors: false,
            callbacks: {
              title: (items) => items.length ? items[0].dataset.label : "",
              label: (item) => [[spec.x, item.parsed.x], [spec.y, item.parsed.y]]
                .map(([axis, v]) => (axis.label ? axis.label.replace(/, %$/, "") + ": " : "") + show(axis, v)),
            },
          },
        },
      },
    }));
  }

  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      seen.unobserve(entry.target);
      draw(entry.target);
    }
  }, { rootMargin: "400px" });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => [...drawn.keys()].forEach(draw));
  addEventListener("beforeprint", () => document.querySelectorAll(".chart").forEach(draw));
  return (root) => {
    for (const [place, chart] of drawn) if (!place.isConnected && drawn.delete(place)) chart.destroy();
    root.querySelectorAll(".chart").forEach((place) => seen.observe(place));
  };
})();
drawCharts(document);

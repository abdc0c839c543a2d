// Core of the charts of a study's page: registry, selectors, theme, and helpers that the charts share. The charts
// themselves register in charts_gain.js, charts_space.js, charts_model.js and charts_time.js.
"use strict";

const StudyCharts = (() => {
  const definitions = new Map();
  const instances = {};
  const selected = {};
  let document_ = null;
  let observer = null;
  window.setpointCharts = instances;

  // `definition`: { options(context) or null, height(context), selects: { id: { choices(context), initial(context), isOfForm } },
  // also: other charts that the selects change, attach(instance), updated(context), drawn(context, instance) }.
  const register = (name, definition) => definitions.set(name, definition);

  const read = (id) => {
    const element = document.getElementById(id);
    return element === null ? null : JSON.parse(element.textContent);
  };

  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function theme() {
    const colors = {};
    for (const name of ["surface", "raised", "line", "text", "muted", "faint", "low", "high", "window"]) {
      colors[name] = style(`--${name}`);
    }
    colors.series = [1, 2, 3, 4, 5, 6].map((index) => style(`--series-${index}`));
    colors.font = getComputedStyle(document.body).fontFamily;
    return colors;
  }

  const figure = (name) => document.querySelector(`figure[data-chart="${name}"]`);

  function context(name) {
    const plot = figure(name)?.querySelector(".plot") ?? null;
    return { document: document_, theme: theme(), plot, width: plot?.clientWidth ?? 0, selected };
  }

  function fillSelects(name) {
    for (const [id, select] of Object.entries(definitions.get(name).selects ?? {})) {
      const element = document.getElementById(id);
      if (element === null) continue;
      const now = context(name);
      const choices = select.choices(now);
      const values = choices.map((choice) => choice.value);
      if (!values.includes(selected[id])) selected[id] = select.initial(now) ?? values[0];
      const present = [...element.options].map((option) => `${option.value}\n${option.text}`);
      if (present.join("\r") !== choices.map((choice) => `${choice.value}\n${choice.text}`).join("\r")) {
        element.replaceChildren(
          ...choices.map((choice) => {
            const option = document.createElement("option");
            option.value = choice.value;
            option.textContent = choice.text;
            return option;
          }),
        );
      }
      element.value = selected[id];
    }
  }

  function base({ theme, plot }) {
    return {
      animation: false,
      textStyle: { fontFamily: theme.font, fontSize: 12, color: theme.text },
      aria: { enabled: true, label: { enabled: true, description: plot.dataset.label } },
      tooltip: {
        renderMode: "richText",
        confine: true,
        transitionDuration: 0,
        backgroundColor: theme.surface,
        borderColor: theme.muted,
        borderWidth: 1,
        padding: [7, 9],
        textStyle: { color: theme.text, fontSize: 12, fontFamily: theme.font, lineHeight: 16 },
      },
    };
  }

  // An error in one chart leaves the others.
  function draw(name, width) {
    try {
      drawChart(name, width);
    } catch (error) {
      console.error(`chart ${name}:`, error);
    }
  }

  function drawChart(name, width) {
    const definition = definitions.get(name);
    const plot = figure(name)?.querySelector(".plot");
    if (!definition || !plot) return;
    plot.dataset.label ??= plot.getAttribute("aria-label");
    const now = context(name);
    now.width = width ?? now.width;
    const height = definition.height?.(now);
    if (height) plot.style.height = `${Math.round(height)}px`;
    let instance = echarts.getInstanceByDom(plot);
    if (!instance) {
      instance = echarts.init(plot, null, { renderer: "svg", width });
      instances[name] = instance;
      definition.attach?.(instance);
    } else {
      instance.resize({ width: width ?? "auto", height: "auto" });
    }
    const options = definition.options(now);
    if (options === null) {
      instance.clear();
    } else {
      const hidden = instance.getOption()?.legend?.[0]?.selected;
      const merged = { ...base(now), ...options };
      merged.tooltip = { ...base(now).tooltip, ...options.tooltip };
      if (hidden && merged.legend) merged.legend.selected = hidden;
      instance.setOption(merged, { notMerge: true });
    }
    definition.drawn?.(now, instance);
  }

  const names = () => [...document.querySelectorAll("figure[data-chart]")].map((element) => element.dataset.chart);
  const drawAll = (width) => names().forEach((name) => draw(name, width));

  // Draws each chart once it is near the visible part of the page. Charts that are already drawn are drawn again.
  function redraw() {
    observer ??= new IntersectionObserver(
      (entries) => {
        for (const { target } of entries.filter((entry) => entry.isIntersecting)) {
          observer.unobserve(target);
          draw(target.dataset.chart);
        }
      },
      { rootMargin: "400px" },
    );
    for (const name of names()) {
      observer.unobserve(figure(name));
      observer.observe(figure(name));
    }
  }

  // Shows another state of the document. Charts whose figures have left the page are disposed of.
  function update(next) {
    document_ = next;
    for (const name of Object.keys(instances)) {
      if (!instances[name].getDom().isConnected) {
        instances[name].dispose();
        delete instances[name];
      }
    }
    for (const [name, definition] of definitions) {
      if (!figure(name)) continue;
      fillSelects(name);
      definition.updated?.(context(name));
    }
    redraw();
  }

  function select(id, value) {
    const found = [...definitions].find(([, definition]) => definition.selects && id in definition.selects);
    if (!found) return;
    selected[id] = value;
    for (const name of [found[0], ...(found[1].also ?? [])]) {
      fillSelects(name);
      definitions.get(name).updated?.(context(name));
      if (!found[1].selects[id].isOfForm) draw(name);
    }
  }

  const start = () => update(read("document") ?? { documents: read("documents") });
  return { context, draw, drawAll, instances, redraw, register, select, selected, start, update };
})();

// Helpers without state.
const ChartParts = {
  // Short text of a number, as in the tables.
  number(value) {
    if (value === null || value === undefined || Number.isNaN(value)) return "–";
    if (Math.abs(value) >= 1000) return value.toFixed(0);
    return String(Number(value.toPrecision(4)));
  },

  // Text of a tick, with all of its digits. `number` may shorten neighbours to the same text.
  tick: (value) => String(Number(value.toPrecision(10))),

  percent: (share) => `${Number((share * 100).toFixed(1))} %`,

  duration(seconds) {
    if (seconds < 60) return `${Number(seconds.toFixed(1))} s`;
    if (seconds < 7200) return `${Number((seconds / 60).toFixed(1))} min`;
    return `${Number((seconds / 3600).toFixed(1))} h`;
  },

  // Lines of a tooltip. A zero-width space keeps data from being read as ECharts' style markup.
  lines: (lines) => lines.join("\n").replaceAll("{", "{\u200b"),

  // Breaks a name after its separators, into lines of at most `letters`.
  wrap(name, letters, mostLines) {
    const lines = [""];
    for (const part of String(name).match(/[^-_ ]*[-_ ]*/g)) {
      if (lines.at(-1) !== "" && (lines.at(-1) + part).trimEnd().length > letters) lines.push("");
      lines[lines.length - 1] += part;
    }
    const shown = lines.slice(0, mostLines).map((line) => ChartParts.short(line.trimEnd(), letters + 3));
    return shown.join("\n") + (lines.length > mostLines && !shown.at(-1).endsWith("…") ? "…" : "");
  },

  // Text that fits a line of a tooltip.
  short: (text, most = 48) => ([...String(text)].length > most ? `${[...String(text)].slice(0, most - 1).join("")}…` : String(text)),

  objectiveName: ({ document: { objective } }) =>
    objective === null ? "value" : objective.unit ? `${objective.name} (${objective.unit})` : objective.name,

  trialTitle: (trial) => `trial ${trial.trial}, ${trial.origin.replaceAll("_", " ")}`,

  trialFlags(trial, most = 12) {
    const flags = Object.entries(trial.config);
    const lines = flags.slice(0, most).map(([flag, value]) => ChartParts.short(`${flag} = ${value}`));
    return flags.length > most ? [...lines, `and ${flags.length - most} more`] : lines;
  },

  metric: (document, trial, name) => trial.metrics?.[document.metrics.indexOf(name)] ?? null,

  axis(theme, more = {}) {
    return {
      type: "value",
      scale: true,
      axisLine: { show: true, onZero: false, lineStyle: { color: theme.muted } },
      axisTick: { lineStyle: { color: theme.muted } },
      splitLine: { lineStyle: { color: theme.line } },
      nameTextStyle: { color: theme.muted },
      nameLocation: "middle",
      ...more,
      axisLabel: { color: theme.muted, hideOverlap: true, formatter: ChartParts.tick, ...more.axisLabel },
    };
  },

  // Axis of metrics, logarithmic if they span a wide range.
  metricAxis(theme, values, more) {
    const [low, high] = [Math.min(...values), Math.max(...values)];
    if (!(low > 0 && high / low > 12)) return ChartParts.axis(theme, more);
    const name = `${more.name}, logarithmic`;
    return ChartParts.axis(theme, { ...more, name, type: "log", logBase: 2, min: low / 1.15, max: high * 1.15, axisLabel: { showMinLabel: false, showMaxLabel: false } });
  },

  star: "path://M0,-10L2.9,-4L9.5,-3.1L4.8,1.5L5.9,8.1L0,5L-5.9,8.1L-4.8,1.5L-9.5,-3.1L-2.9,-4Z",

  // Axis with one row for each name, the first at the top.
  rows(theme, names, width) {
    const letters = Math.floor(Math.min(270, width * 0.38) / 6.7);
    return ChartParts.axis(theme, {
      type: "category",
      data: names,
      inverse: true,
      splitLine: { show: false },
      axisTick: { show: false },
      axisLabel: { formatter: (name) => ChartParts.wrap(name, letters, 2), lineHeight: 13, interval: 0, hideOverlap: false, color: theme.text },
    });
  },

  grid: (more = {}) => ({ left: 8, right: 18, top: 10, bottom: 2, outerBoundsMode: "same", outerBoundsContain: "all", ...more }),

  // Legend below the plot, and its height: ECharts wraps its entries, but leaves no room for further lines.
  legend(theme, width, names) {
    const shown = (name) => ChartParts.short(name, 32);
    const widths = names.map((name) => 34 + 6.9 * shown(name).length);
    let rows = 1;
    widths.reduce((used, next) => (used + next > width && used > 0 ? (rows++, next) : used + next), 0);
    const option = {
      data: names,
      bottom: 0,
      left: 0,
      itemWidth: 15,
      itemHeight: 11,
      formatter: shown,
      textStyle: { color: theme.text },
      inactiveColor: theme.faint,
    };
    return { option, height: 13 + 21 * rows };
  },

  // Style of a symbol. Hollow symbols are filled with the ground, so that the pointer also hits their inside.
  mark: (theme, color, hollow = false) => ({ color: hollow ? theme.surface : color, borderColor: color, borderWidth: hollow ? 1.6 : 0 }),

  // Error bars: data of [position, low, high]; `shift` moves the bar, in pixels.
  errorBars({ id, data, color, horizontal = false, shift = 0, cap = 4, more = {} }) {
    return {
      type: "custom",
      id,
      data,
      silent: true,
      clip: true,
      tooltip: { show: false },
      itemStyle: { color },
      encode: horizontal ? { x: [1, 2], y: 0 } : { x: 0, y: [1, 2] },
      renderItem(_, api) {
        const ends = [1, 2].map((index) =>
          api.coord(horizontal ? [api.value(index), api.value(0)] : [api.value(0), api.value(index)]),
        );
        if (ends.flat().some(Number.isNaN)) return null;
        const [dx, dy] = horizontal ? [0, cap] : [cap, 0];
        const line = ([x1, y1], [x2, y2]) => ({
          type: "line",
          shape: horizontal ? { x1, y1: y1 + shift, x2, y2: y2 + shift } : { x1: x1 + shift, y1, x2: x2 + shift, y2 },
          style: { stroke: color, lineWidth: 1.5, ...more },
        });
        const caps = cap ? ends.map(([x, y]) => line([x - dx, y - dy], [x + dx, y + dy])) : [];
        return { type: "group", children: [line(...ends), ...caps] };
      },
    };
  },
};

// Charts over time: use of time, and the timeline of a trial.
"use strict";

(() => {
  const { axis, duration, grid, legend, lines, number, percent, rows, trialTitle } = ChartParts;

  // Distance of ticks on an axis of seconds.
  function tickSeconds(highest) {
    const steps = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 86400];
    return steps.find((step) => highest / step <= 7) ?? 86400 * Math.ceil(highest / 86400 / 7);
  }

  StudyCharts.register("time", {
    height: ({ document: { time } }) => 42 + 25 * (time.parts.length + time.saved.length),
    options({ document, theme, width }) {
      const spent = document.time.parts.map((part) => ({ name: `spent: ${part.name}`, seconds: part.seconds }));
      const saved = document.time.saved.map((part) => ({ name: `saved: ${part.by}`, seconds: part.seconds }));
      const all = [...spent, ...saved];
      const bars = (id, from, count, color) => ({
        id,
        type: "bar",
        stack: "time",
        barMaxWidth: 16,
        itemStyle: { color },
        label: { show: true, position: "right", color: theme.text, formatter: ({ value }) => (value === null ? "" : duration(value)) },
        data: all.map((part, index) => (from <= index && index < from + count ? part.seconds : null)),
      });
      const highest = Math.max(...all.map((part) => part.seconds));
      const interval = tickSeconds(highest);
      return {
        grid: grid({ top: 2, right: 60 }),
        xAxis: axis(theme, { scale: false, interval, max: interval * Math.ceil(highest / interval), axisLabel: { formatter: duration } }),
        yAxis: rows(theme, all.map((part) => part.name), width),
        tooltip: { formatter: ({ name, value }) => lines([name, duration(value)]) },
        series: [bars("spent", 0, spent.length, theme.series[0]), bars("saved", spent.length, saved.length, theme.series[2])],
      };
    },
  });

  const panels = [
    { title: "KV cache use, %", series: ["kv_cache_usage"], formatter: percent, max: 1 },
    { title: "requests", series: ["requests_running", "requests_waiting"] },
    { title: "memory, GiB", series: ["gpu_memory_gib", "server_rss_gib"] },
    { title: "power, W", series: ["gpu_power_w"] },
    { title: "batch size, tokens per step", series: ["tokens_per_step"] },
    { title: "processors of the host, %", series: ["host_cpu_share"], formatter: percent, max: 1 },
  ];
  const seriesNames = {
    kv_cache_usage: "KV cache use",
    requests_running: "running",
    requests_waiting: "waiting",
    gpu_memory_gib: "GPU memory",
    server_rss_gib: "server memory",
    gpu_power_w: "power",
    tokens_per_step: "tokens per step",
    host_cpu_share: "host processors",
  };
  const nameOf = (series) => seriesNames[series] ?? series;

  // Panels for the series that were sampled. Series without a panel of their own follow.
  function panelsOf(timeline) {
    const present = Object.keys(timeline.series);
    const known = panels.map((panel) => ({ ...panel, series: panel.series.filter((name) => present.includes(name)) }));
    const others = present.filter((name) => !panels.some((panel) => panel.series.includes(name)));
    const shown = [...known, ...others.map((name) => ({ title: name, series: [name] }))].filter((panel) => panel.series.length > 0);
    const requests = shown.find((panel) => panel.title === "requests");
    if (requests && !present.includes("tokens_per_step")) requests.title = "requests; the running ones are the batch size";
    return shown;
  }

  // Timelines that were fetched from the live server. A null means: requested.
  const fetched = new Map();
  const shownTrial = ({ selected }) => selected["timeline-trial"];
  const timelineOf = (context) => context.document.timelines[shownTrial(context)] ?? fetched.get(shownTrial(context)) ?? null;

  function note(text) {
    const element = document.getElementById("timeline-note");
    if (element && element.textContent !== text) element.textContent = text;
  }

  async function fetchTimeline(trial, url) {
    fetched.set(trial, null);
    note(`Loading the samples of trial ${trial}…`);
    try {
      const response = await fetch(url.replace("{trial}", encodeURIComponent(trial)));
      if (!response.ok) throw new Error(`status ${response.status}`);
      fetched.set(trial, await response.json());
      if (StudyCharts.selected["timeline-trial"] === trial) StudyCharts.draw("timeline");
    } catch (error) {
      fetched.delete(trial);
      note(`The samples of trial ${trial} could not be loaded: ${error.message}. Select the trial again.`);
    }
  }

  // The table is built when its <details> is open: it may have thousands of rows.
  function fillTable(context) {
    const element = document.getElementById("timeline-data");
    const timeline = timelineOf(context);
    if (!element || !element.closest("details").open) return;
    if (!timeline) {
      element.replaceChildren();
      return;
    }
    const names = Object.keys(timeline.series);
    const table = document.createElement("table");
    const cell = (row, text) => {
      const one = row.insertCell();
      one.className = "n";
      one.textContent = text;
    };
    const head = table.createTHead().insertRow();
    for (const name of ["time (s)", ...names.map(nameOf)]) {
      const one = document.createElement("th");
      one.scope = "col";
      one.className = "n";
      one.textContent = name;
      head.append(one);
    }
    const body = table.createTBody();
    timeline.at_s.forEach((time, index) => {
      const row = body.insertRow();
      cell(row, number(time));
      for (const name of names) cell(row, number(timeline.series[name][index]));
    });
    element.replaceChildren(table);
  }

  const panelHeight = 112;

  StudyCharts.register("timeline", {
    selects: {
      "timeline-trial": {
        choices({ document }) {
          const sampled = (trial) => (document.timelines_url === null ? String(trial.trial) in document.timelines : trial.metrics !== null);
          const order = (trial) => (trial.trial === document.winner?.trial ? 0 : 1);
          return document.trials
            .filter(sampled)
            .sort((a, b) => order(a) - order(b) || a.trial - b.trial)
            .map((trial) => ({
              value: String(trial.trial),
              text: `${trialTitle(trial)}${order(trial) === 0 ? ", winner" : ""}${trial.value === null ? `, ${trial.state}` : `: ${number(trial.value)}`}`,
            }));
        },
        initial: () => undefined,
      },
    },
    height(context) {
      const timeline = timelineOf(context);
      return timeline && 64 + panelHeight * panelsOf(timeline).length;
    },
    options(context) {
      const { document, theme } = context;
      const timeline = timelineOf(context);
      if (!timeline) return null;
      const shown = panelsOf(timeline);
      const span = { min: timeline.at_s[0] ?? 0, max: timeline.at_s.at(-1) ?? 1 };
      const start = timeline.window?.[0] === 0 ? "seconds since the start of the measured window" : "seconds";
      const shared = shown.filter((panel) => panel.series.length > 1).flatMap((panel) => panel.series);
      const grids = shown.map((_, index) => ({ left: 58, right: 18, top: 26 + index * panelHeight, height: panelHeight - 44 }));
      return {
        legend: legend(theme, context.width, shared.map(nameOf)).option,
        grid: grids,
        axisPointer: { link: [{ xAxisIndex: "all" }], lineStyle: { color: theme.muted } },
        xAxis: shown.map((_, index) => {
          const last = index === shown.length - 1;
          return axis(theme, { gridIndex: index, ...span, name: last ? start : "", nameGap: 22, splitLine: { show: false }, axisLabel: { show: last, showMinLabel: false, showMaxLabel: false } });
        }),
        yAxis: shown.map((panel, index) =>
          axis(theme, {
            gridIndex: index,
            name: panel.title,
            nameLocation: "end",
            nameGap: 9,
            nameTextStyle: { align: "left", color: theme.text, padding: [0, 0, 0, -50] },
            scale: false,
            min: 0,
            splitNumber: 2,
            max: panel.max ?? null,
            axisLabel: panel.formatter ? { formatter: panel.formatter } : {},
          }),
        ),
        tooltip: {
          trigger: "axis",
          formatter: (points) =>
            lines([`${number(points[0].value[0])} s`, ...points.map((point) => `${point.seriesName}: ${number(point.value[1])}`)]),
        },
        series: shown.flatMap((panel, index) =>
          panel.series.map((name, position) => {
            const color = theme.series[position === 0 ? 0 : 1];
            return {
              id: name,
              name: nameOf(name),
              type: "line",
              xAxisIndex: index,
              yAxisIndex: index,
              showSymbol: false,
              symbol: "circle",
              lineStyle: { color, width: 1.6, type: position === 0 ? "solid" : "dashed" },
              itemStyle: { color },
              data: timeline.at_s.map((time, at) => [time, timeline.series[name][at]]),
              ...(position === 0 && timeline.window
                ? { markArea: { silent: true, itemStyle: { color: theme.window }, data: [[{ xAxis: timeline.window[0] }, { xAxis: timeline.window[1] }]] } }
                : {}),
            };
          }),
        ),
      };
    },
    drawn(context) {
      const trial = shownTrial(context);
      const timeline = timelineOf(context);
      if (timeline) note(timeline.window ? "" : "The trial has no measured window.");
      else if (trial !== undefined && context.document.timelines_url !== null && !fetched.has(trial)) fetchTimeline(trial, context.document.timelines_url);
      fillTable(context);
    },
  });

  document.addEventListener(
    "toggle",
    (event) => {
      if (event.target.id === "d-timeline") fillTable(StudyCharts.context("timeline"));
    },
    true,
  );
})();

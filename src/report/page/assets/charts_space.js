// Charts of the search space: throughput against latency, load curves, and parallel coordinates with their selection.
"use strict";

(() => {
  const { axis, grid, legend, lines, mark, metric, metricAxis, number, objectiveName, short, trialFlags, trialTitle, wrap } = ChartParts;
  const choices = (names) => names.map((name) => ({ value: name, text: name }));
  const limitsOn = (document, name) => document.limits.filter((limit) => limit.metric === name);
  const limitLines = (document, name, direction) =>
    limitsOn(document, name).flatMap((limit) =>
      [limit.at_most, limit.at_least].filter((bound) => bound !== null).map((bound) => ({ [direction]: bound, name: limit.text })),
    );
  const limitStyle = (theme, data, position = "insideEndTop") => ({
    silent: true,
    symbol: "none",
    lineStyle: { color: theme.series[1], type: "dashed", width: 1.5 },
    label: { position, color: theme.series[1], backgroundColor: theme.surface, padding: [1, 3], formatter: ({ data }) => short(data.name, 40) },
    data,
  });

  const frontOf = ({ document, selected }) => {
    const [x, y] = [selected["tradeoff-x"], selected["tradeoff-y"]];
    return document.fronts.find((front) => (front.x === x && front.y === y) || (front.x === y && front.y === x));
  };

  StudyCharts.register("tradeoff", {
    selects: {
      "tradeoff-x": {
        choices: ({ document }) => choices(document.metrics),
        initial: ({ document }) => document.fronts[0]?.x ?? document.objective?.metric,
      },
      "tradeoff-y": {
        choices: ({ document }) => choices(document.metrics),
        initial: ({ document }) =>
          document.fronts[0]?.y ?? document.limits[0]?.metric ?? document.metrics.find((name) => document.metric_goals[name] === "minimize"),
      },
    },
    options(context) {
      const { document, theme, selected } = context;
      const [x, y] = [selected["tradeoff-x"], selected["tradeoff-y"]];
      const point = (trial) => [metric(document, trial, x), metric(document, trial, y), trial.trial];
      const trials = document.trials.filter((trial) => point(trial).every((value) => value !== null));
      const byNumber = new Map(trials.map((trial) => [trial.trial, trial]));
      const front = frontOf(context);
      const onFront = (front?.trials ?? []).map((trial) => byNumber.get(trial)).filter(Boolean);
      const groups = [
        { id: "over", name: "over a limit", holds: (trial) => trial.is_feasible === false, symbol: "circle", hollow: true, color: 1 },
        { id: "within", name: "within the limits", holds: (trial) => trial.is_feasible !== false, symbol: "circle", color: 0 },
        { id: "defaults", name: "engine's defaults", holds: (trial) => trial.origin === "baseline", symbol: "rect", color: 5, size: 13 },
        { id: "deployment", name: "today's deployment", holds: (trial) => trial.origin === "deployment", symbol: "triangle", color: 3, size: 14 },
        { id: "winner", name: "winner", holds: (trial) => trial.trial === document.winner?.trial, symbol: ChartParts.star, color: 2, size: 22 },
      ];
      const series = groups
        .map(({ id, name, holds, symbol, hollow, color, size }, z) => ({
          id,
          name,
          type: "scatter",
          symbol,
          symbolSize: size ?? 9,
          z: z < 2 ? 3 : z + 5,
          itemStyle: mark(theme, theme.series[color], hollow),
          data: trials.filter(holds).map(point),
        }))
        .filter((group) => group.data.length > 0);
      if (series.length > 0) {
        series[0].markLine = limitStyle(theme, [...limitLines(document, y, "yAxis"), ...limitLines(document, x, "xAxis")]);
      }
      const below = legend(theme, context.width, [...(onFront.length > 0 ? ["Pareto front"] : []), ...series.map((group) => group.name)]);
      return {
        legend: below.option,
        grid: grid({ top: 4, bottom: below.height }),
        xAxis: metricAxis(theme, trials.map((trial) => point(trial)[0]), { name: x, nameGap: 26 }),
        yAxis: metricAxis(theme, trials.map((trial) => point(trial)[1]), { name: y, nameLocation: "end", nameGap: 8, nameTextStyle: { align: "left", color: theme.muted } }),
        tooltip: {
          formatter({ value }) {
            const trial = byNumber.get(value[2]);
            return lines([trialTitle(trial), `${x}: ${number(value[0])}`, `${y}: ${number(value[1])}`, ...trialFlags(trial)]);
          },
        },
        series: [
          ...(onFront.length > 0
            ? [
                {
                  id: "front",
                  name: "Pareto front",
                  type: "line",
                  symbol: "none",
                  silent: true,
                  z: 6,
                  lineStyle: { color: theme.series[4], width: 2 },
                  itemStyle: { color: theme.series[4] },
                  data: onFront.map(point),
                },
              ]
            : []),
          ...series,
        ],
      };
    },
    drawn(context) {
      const note = document.getElementById("tradeoff-note");
      const given = context.document.fronts.map((front) => `${front.x} against ${front.y}`);
      const text = frontOf(context) ? "" : given.length > 0 ? `A Pareto front is computed for ${given.join(", ")}.` : "No Pareto front is computed.";
      if (note && note.textContent !== text) note.textContent = text;
    },
  });

  const loadMetrics = (document) => [
    ...new Set(document.load_curves.flatMap((curve) => curve.points.flatMap((point) => Object.keys(point.metrics)))),
  ];

  StudyCharts.register("load", {
    selects: {
      "load-metric": {
        choices: ({ document }) => choices(loadMetrics(document)),
        initial: ({ document }) => loadMetrics(document).find((name) => limitsOn(document, name).length > 0),
      },
    },
    options({ document, theme, selected, width }) {
      const name = selected["load-metric"];
      const dashes = ["solid", "dashed", "dotted"];
      const symbols = ["circle", "diamond", "triangle"];
      const curves = document.load_curves.map((curve, index) => {
        const color = theme.series[[0, 3, 2, 4, 5][index % 5]];
        const highest = curve.highest === null ? [] : [{ xAxis: curve.highest, name: `highest ${number(curve.highest)}` }];
        return {
          id: `curve-${index}`,
          name: curve.name,
          type: "line",
          symbol: symbols[index % 3],
          symbolSize: 9,
          lineStyle: { color, width: 2, type: dashes[index % 3] },
          itemStyle: mark(theme, color),
          data: curve.points
            .filter((point) => (point.metrics[name] ?? null) !== null)
            .map((point) => ({ value: [point.load, point.metrics[name]], kept: point.kept, itemStyle: mark(theme, color, !point.kept) })),
          markLine: { ...limitStyle(theme, highest, "insideEndTop"), lineStyle: { color, type: dashes[index % 3], width: 1 }, label: { color, formatter: ({ data }) => data.name, position: "insideEndTop" } },
        };
      });
      const limits = limitLines(document, name, "yAxis");
      const below = legend(theme, width, curves.map((curve) => curve.name));
      return {
        legend: below.option,
        grid: grid({ top: 4, bottom: below.height, right: 30 }),
        xAxis: axis(theme, { name: `load (${document.load_curves[0].unit})`, nameGap: 26, scale: false }),
        yAxis: metricAxis(theme, [...curves.flatMap((curve) => curve.data.map((point) => point.value[1])), ...limits.map((limit) => limit.yAxis)], { name, nameLocation: "end", nameGap: 8, scale: false, nameTextStyle: { align: "left", color: theme.muted } }),
        tooltip: {
          formatter: ({ seriesName, value, data }) =>
            lines([seriesName, `load ${number(value[0])}`, `${name}: ${number(value[1])}`, data.kept ? "within the limits" : "breaks a limit"]),
        },
        series: [...curves, ...(limits.length > 0 ? [{ id: "limits", type: "line", data: [], markLine: limitStyle(theme, limits, "insideStartTop") }] : [])],
      };
    },
  });

  // Selection of the parallel coordinates: key of an axis to [low, high]. A choice has the position of its value.
  const brush = new Map();
  const missing = "–";

  // Axes of parameters that differ between trials, and of the objective. Choices are positions in `values`.
  function axesOf({ document }) {
    const trials = document.trials.filter((trial) => trial.value !== null);
    const axes = document.parameters.map((parameter) => {
      const key = `parameter ${parameter.name}`;
      const used = trials.map((trial) => trial.config[parameter.name]).filter((value) => value !== undefined);
      if (parameter.kind === "number" && used.every((value) => typeof value === "number")) {
        const log = parameter.log && used.every((value) => value > 0);
        return { key, name: parameter.name, log, values: null, read: (trial) => trial.config[parameter.name] ?? null, varies: new Set(used).size > 1 };
      }
      const values = [...new Set([...parameter.values, ...used].map(String))];
      const read = (trial) => (parameter.name in trial.config ? values.indexOf(String(trial.config[parameter.name])) : null);
      return { key, name: parameter.name, log: false, values, read, varies: new Set(used).size > 1 };
    });
    const name = document.objective?.name ?? "value";
    return { trials, axes: [...axes.filter((one) => one.varies), { key: "objective", name, log: false, values: null, read: (trial) => trial.value, varies: true }] };
  }

  function brushed(context) {
    const { axes, trials } = axesOf(context);
    const inside = (trial, one) => {
      const interval = brush.get(one.key);
      const value = one.read(trial);
      return !interval || (value !== null && interval[0] <= value && value <= interval[1]);
    };
    const goal = context.document.objective?.goal === "minimize" ? 1 : -1;
    return trials.filter((trial) => axes.every((one) => inside(trial, one))).sort((a, b) => goal * (a.value - b.value));
  }

  const intervalText = (one, [low, high]) =>
    one.values ? one.values.filter((_, index) => low <= index && index <= high).join(" or ") : `${number(low)} to ${number(high)}`;

  function cell(kind, text, isNumber) {
    const element = document.createElement(kind);
    element.textContent = text;
    if (isNumber) element.className = "n";
    return element;
  }

  function row(kind, texts) {
    const element = document.createElement("tr");
    element.append(...texts.map((text, index) => cell(kind, text, index !== 1 && index !== 3)));
    if (kind === "th") for (const one of element.children) one.scope = "col";
    return element;
  }

  const most = 100;

  function listBrushed(context) {
    const status = document.getElementById("brush-status");
    const results = document.getElementById("brush-results");
    const { axes, trials } = axesOf(context);
    const active = axes.filter((one) => brush.has(one.key));
    results.hidden = active.length === 0;
    if (active.length === 0) {
      status.textContent = "No trials are selected.";
      results.replaceChildren();
      return;
    }
    const found = brushed(context);
    const ranges = active.map((one) => `${one.name} ${intervalText(one, brush.get(one.key))}`).join(", ");
    status.textContent = `${found.length} of ${trials.length} trials: ${ranges}.${found.length > most ? ` The best ${most} are listed.` : ""}`;
    const shown = axes.slice(0, -1);
    const table = document.createElement("table");
    const text = (trial, one) => (one.name in trial.config ? String(trial.config[one.name]) : missing);
    table.createTHead().append(row("th", ["trial", "origin", axes.at(-1).name, "limits", ...shown.map((one) => one.name)]));
    table.createTBody().append(
      ...found.slice(0, most).map((trial) => {
        const limits = trial.is_feasible === false ? "broken" : "kept";
        return row("td", [trial.trial, trial.origin.replaceAll("_", " "), number(trial.value), limits, ...shown.map((one) => text(trial, one))]);
      }),
    );
    results.replaceChildren(table);
  }

  // Mixes the colours of the worst and the best value.
  function mixed(low, high, share) {
    const part = (color, index) => parseInt(color.slice(1 + 2 * index, 3 + 2 * index), 16);
    return `rgb(${[0, 1, 2].map((index) => Math.round(part(low, index) + share * (part(high, index) - part(low, index)))).join(", ")})`;
  }

  // Ticks at the values themselves, if there are only a few. Otherwise ECharts chooses them.
  function ticksOf(one, trials) {
    if (one.values) return one.values.map((_, index) => index);
    const values = [...new Set(trials.map(one.read))].filter((value) => value !== null);
    return values.length <= 10 ? values.sort((a, b) => a - b) : undefined;
  }

  // Axes side by side need room for their names. Otherwise they lie below each other.
  const isUpright = (width, count) => width / count >= 86;

  StudyCharts.register("parallel", {
    height: (context) => {
      const count = axesOf(context).axes.length;
      return isUpright(context.width, count) ? 420 : 40 + 56 * count;
    },
    options(context) {
      const { document, theme, width } = context;
      const { axes, trials } = axesOf(context);
      if (axes.length < 2) return null;
      const upright = isUpright(width, axes.length);
      const goal = document.objective?.goal === "minimize" ? -1 : 1;
      const ordered = [...trials].sort((a, b) => goal * (a.value - b.value));
      const share = new Map(ordered.map((trial, index) => [trial.trial, ordered.length > 1 ? index / (ordered.length - 1) : 1]));
      const opacity = trials.length > 400 ? 0.35 : trials.length > 80 ? 0.55 : 0.8;
      const isWinner = (trial) => trial.trial === document.winner?.trial;
      return {
        parallel: {
          layout: upright ? "horizontal" : "vertical",
          ...(upright ? { left: 48, right: 56, top: 70, bottom: 24 } : { left: 16, right: 24, top: 34, bottom: 30 }),
          parallelAxisDefault: {
            nameTextStyle: { color: theme.text, lineHeight: 14, ...(upright ? {} : { align: "left", verticalAlign: "bottom", padding: [1, 4, 1, 0], backgroundColor: theme.surface }) },
            nameGap: upright ? 10 : 0,
            nameLocation: upright ? "end" : "start",
            axisLine: { lineStyle: { color: theme.muted } },
            z: 10,
            realtime: trials.length <= 500,
          },
        },
        parallelAxis: axes.map((one, dim) => ({
          id: one.key,
          dim,
          name: upright ? wrap(one.name, 12, 4) : short(one.name, 40),
          areaSelectStyle: { width: 20, color: theme.series[0], opacity: 0.3, borderColor: theme.series[0], borderWidth: 1 },
          scale: true,
          type: one.log ? "log" : "value",
          ...(one.log ? { logBase: 2 } : {}),
          ...(one.values ? { min: -0.5, max: one.values.length - 0.5 } : {}),
          axisTick: { customValues: ticksOf(one, trials) },
          axisLabel: {
            customValues: ticksOf(one, trials),
            color: theme.text,
            backgroundColor: theme.surface,
            padding: [1, 3],
            borderRadius: 3,
            hideOverlap: true,
            formatter: one.values ? (position) => short(one.values[position] ?? "", 14) : number,
          },
        })),
        tooltip: { show: false },
        series: [
          {
            id: "trials",
            type: "parallel",
            progressive: 0,
            smooth: false,
            inactiveOpacity: 0.06,
            activeOpacity: 0.9,
            lineStyle: { width: 1.2 },
            data: [...ordered.filter((trial) => !isWinner(trial)), ...ordered.filter(isWinner)].map((trial) => ({
              trial: trial.trial,
              value: axes.map((one) => one.read(trial) ?? "-"),
              lineStyle: isWinner(trial)
                ? { color: theme.series[1], width: 3.5, opacity: 1 }
                : { color: mixed(theme.low, theme.high, share.get(trial.trial)), type: trial.is_feasible === false ? "dashed" : "solid", opacity },
            })),
          },
        ],
      };
    },
    attach(instance) {
      instance.on("axisareaselected", ({ parallelAxisId, intervals }) => {
        if (!parallelAxisId) return;
        if (intervals.length === 0) brush.delete(parallelAxisId);
        else brush.set(parallelAxisId, intervals[0]);
        listBrushed(StudyCharts.context("parallel"));
      });
    },
    drawn(context, instance) {
      for (const one of axesOf(context).axes) {
        const intervals = brush.has(one.key) ? [brush.get(one.key)] : [];
        if (intervals.length > 0) instance.dispatchAction({ type: "axisAreaSelect", parallelAxisId: one.key, intervals });
      }
      if (brush.size > 0) instance.resize();
      listBrushed(context);
    },
    selects: {
      "brush-parameter": {
        isOfForm: true,
        choices: (context) => axesOf(context).axes.map(({ key, name }) => ({ value: key, text: name })),
        initial: () => undefined,
      },
      "brush-choice": {
        isOfForm: true,
        choices: (context) => (axisInForm(context)?.values ?? []).map((value, index) => ({ value: String(index), text: value })),
        initial: () => undefined,
      },
    },
    updated: showInputs,
  });

  const axisInForm = (context) => axesOf(context).axes.find((one) => one.key === context.selected["brush-parameter"]);

  // Shows the inputs that fit the parameter: two bounds, or one value.
  function showInputs(context) {
    const isChoice = Boolean(axisInForm(context)?.values);
    document.getElementById("brush-low-label").hidden = isChoice;
    document.getElementById("brush-high-label").hidden = isChoice;
    document.getElementById("brush-choice-label").hidden = !isChoice;
  }

  function apply(key, interval) {
    const instance = StudyCharts.instances.parallel;
    if (interval) brush.set(key, interval);
    else brush.delete(key);
    if (instance) instance.dispatchAction({ type: "axisAreaSelect", parallelAxisId: key, intervals: interval ? [interval] : [] });
    // ECharts draws a selection that another element sets only with the next update.
    if (instance) instance.resize();
    else StudyCharts.draw("parallel");
    listBrushed(StudyCharts.context("parallel"));
  }

  function bound(id, fallback) {
    const text = document.getElementById(id).value;
    return text === "" ? fallback : Number(text);
  }

  document.addEventListener("submit", (event) => {
    if (event.target.id !== "brush") return;
    event.preventDefault();
    const context = StudyCharts.context("parallel");
    const one = axisInForm(context);
    if (one.values) {
      const position = Number(document.getElementById("brush-choice").value);
      apply(one.key, [position - 0.4, position + 0.4]);
      return;
    }
    const present = axesOf(context).trials.map(one.read).filter((value) => value !== null);
    const ends = [bound("brush-low", Math.min(...present)), bound("brush-high", Math.max(...present))];
    apply(one.key, [Math.min(...ends), Math.max(...ends)]);
  });

  document.addEventListener("click", (event) => {
    if (event.target.id !== "brush-clear") return;
    for (const key of [...brush.keys()]) apply(key, null);
    for (const id of ["brush-low", "brush-high"]) document.getElementById(id).value = "";
    listBrushed(StudyCharts.context("parallel"));
  });
})();

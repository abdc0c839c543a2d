// Charts of the models: importance, partial dependence, and predicted against measured values.
"use strict";

(() => {
  const { axis, errorBars, grid, legend, lines, mark, number, objectiveName, percent, rows, short, trialTitle } = ChartParts;

  // An objective may have a limit, too: the name alone is not unique.
  const keyOf = (about) => `${about.of} ${about.name}`;
  const aboutOf = ({ document, selected }) =>
    document.importance?.about.find((about) => keyOf(about) === selected["importance-about"]) ?? document.importance?.about[0];
  const parameterOf = (context) => {
    const parameters = aboutOf(context)?.parameters ?? [];
    return parameters.find((one) => one.parameter === context.selected["importance-parameter"]) ?? parameters[0];
  };

  StudyCharts.register("importance", {
    also: ["dependence"],
    selects: {
      "importance-about": {
        choices: ({ document }) =>
          document.importance.about.map((about) => ({ value: keyOf(about), text: about.of === "limit" ? `${about.name} (limit)` : about.name })),
        initial: () => undefined,
      },
    },
    height: (context) => 96 + 34 * aboutOf(context).parameters.length,
    options(context) {
      const { theme, width } = context;
      const parameters = aboutOf(context).parameters;
      const kinds = [
        { id: "total", name: "total", shift: -6, color: theme.series[0], symbol: "circle", hollow: false },
        { id: "alone", name: "alone", shift: 6, color: theme.series[1], symbol: "diamond", hollow: true },
      ];
      return {
        legend: legend(theme, width, ["total", "alone"]).option,
        grid: grid({ top: 6, bottom: 34 }),
        xAxis: axis(theme, { name: "share of the variance", nameGap: 26, scale: false, min: 0, axisLabel: { formatter: percent } }),
        yAxis: rows(theme, parameters.map((one) => one.parameter), width),
        tooltip: {
          formatter({ seriesId, dataIndex }) {
            const { share, low, high } = parameters[dataIndex][seriesId];
            return lines([short(parameters[dataIndex].parameter), `${seriesId}: ${percent(share)} (${percent(low)} to ${percent(high)})`]);
          },
        },
        series: kinds.flatMap(({ id, name, shift, color, symbol, hollow }) => [
          errorBars({ id: `${id}-intervals`, horizontal: true, shift, color, data: parameters.map((one, index) => [index, one[id].low, one[id].high]) }),
          {
            id,
            name,
            type: "scatter",
            symbol,
            symbolSize: hollow ? 11 : 9,
            symbolOffset: [0, shift],
            itemStyle: mark(theme, color, hollow),
            data: parameters.map((one, index) => [one[id].share, index]),
          },
        ]),
      };
    },
  });

  // Band between low and high: data of [x, low, high]. The first item draws the whole polygon.
  function band(id, data, color) {
    return {
      id,
      type: "custom",
      data,
      silent: true,
      clip: true,
      itemStyle: { color },
      encode: { x: 0, y: [1, 2] },
      renderItem(params, api) {
        if (params.dataIndex !== 0) return null;
        const side = (index) => data.map((point) => api.coord([point[0], point[index]]));
        return { type: "polygon", shape: { points: [...side(1), ...side(2).reverse()] }, style: { fill: color, opacity: 0.2 } };
      },
    };
  }

  StudyCharts.register("dependence", {
    selects: {
      "importance-parameter": {
        choices: (context) => aboutOf(context).parameters.map((one) => ({ value: one.parameter, text: one.parameter })),
        initial: () => undefined,
      },
    },
    height: (context) => Math.max(300, 96 + 34 * aboutOf(context).parameters.length),
    options(context) {
      const { document, theme } = context;
      const about = aboutOf(context);
      const one = parameterOf(context);
      if (!one) return null;
      const points = one.dependence;
      const isNumber = points.every((point) => typeof point.value === "number");
      const log = isNumber && points.every((point) => point.value > 0) && document.parameters.some((parameter) => parameter.name === one.parameter && parameter.log);
      const place = (point, index) => (isNumber ? point.value : index);
      const intervals = points.map((point, index) => [place(point, index), point.low, point.high]);
      const color = theme.series[0];
      return {
        grid: grid({ top: 4, right: 26 }),
        xAxis: axis(theme, {
          name: short(one.parameter),
          nameGap: 26,
          ...(isNumber ? { type: log ? "log" : "value", ...(log ? { logBase: 2 } : {}) } : { type: "category", data: points.map((point) => String(point.value)) }),
          axisLabel: { formatter: isNumber ? number : (name) => short(name, 16) },
        }),
        yAxis: axis(theme, { name: short(about.of === "limit" ? `${about.name}: excess over the limit` : about.name), nameLocation: "end", nameGap: 8, nameTextStyle: { align: "left", color: theme.muted } }),
        tooltip: {
          formatter({ dataIndex }) {
            const point = points[dataIndex];
            return lines([short(`${one.parameter} = ${point.value}`), `${number(point.mean)} (${number(point.low)} to ${number(point.high)})`]);
          },
        },
        series: [
          isNumber ? band("intervals", intervals, color) : errorBars({ id: "intervals", data: intervals, color, cap: 8 }),
          {
            id: "mean",
            type: isNumber ? "line" : "scatter",
            symbol: "circle",
            symbolSize: 8,
            lineStyle: { color, width: 2 },
            itemStyle: mark(theme, color),
            data: points.map((point, index) => [place(point, index), point.mean]),
          },
        ],
      };
    },
  });

  StudyCharts.register("predicted", {
    options(context) {
      const { document, theme } = context;
      const trials = document.trials.filter((trial) => trial.expected !== null && trial.value !== null);
      const byNumber = new Map(trials.map((trial) => [trial.trial, trial]));
      const contains = (trial) => trial.expected.low <= trial.value && trial.value <= trial.expected.high;
      const groups = [
        { id: "inside", name: "in the interval", holds: contains, symbol: "circle", color: theme.series[0], hollow: false },
        { id: "outside", name: "outside", holds: (trial) => !contains(trial), symbol: "diamond", color: theme.series[1], hollow: true },
      ];
      const all = trials.flatMap((trial) => [trial.value, trial.expected.low, trial.expected.high]);
      const [low, high] = [all.reduce((a, b) => Math.min(a, b)), all.reduce((a, b) => Math.max(a, b))];
      const margin = (high - low) * 0.03 || Math.abs(high) * 0.01 || 1;
      const ends = { min: low - margin, max: high + margin };
      const label = { showMinLabel: false, showMaxLabel: false };
      return {
        legend: legend(theme, context.width, [...groups.map((group) => group.name), "equal"]).option,
        grid: grid({ top: 4, bottom: 34, right: 26 }),
        xAxis: axis(theme, { name: `predicted ${objectiveName(context)}`, nameGap: 26, ...ends, axisLabel: label }),
        yAxis: axis(theme, { name: `measured ${objectiveName(context)}`, nameLocation: "end", nameGap: 8, nameTextStyle: { align: "left", color: theme.muted }, ...ends, axisLabel: label }),
        tooltip: {
          formatter({ value }) {
            const trial = byNumber.get(value[2]);
            const { mean, low, high } = trial.expected;
            return lines([trialTitle(trial), `predicted: ${number(mean)} (${number(low)} to ${number(high)})`, `measured: ${number(trial.value)}`]);
          },
        },
        series: [
          {
            id: "diagonal",
            name: "equal",
            type: "line",
            symbol: "none",
            silent: true,
            lineStyle: { color: theme.muted, type: "dashed", width: 1.5 },
            itemStyle: { color: theme.muted },
            data: [[ends.min, ends.min], [ends.max, ends.max]],
          },
          ...groups.flatMap(({ id, name, holds, symbol, color, hollow }) => {
            const own = trials.filter(holds);
            return [
              errorBars({ id: `${id}-intervals`, horizontal: true, color, cap: 0, data: own.map((trial) => [trial.value, trial.expected.low, trial.expected.high]), more: { opacity: 0.35, lineWidth: 1 } }),
              { id, name, type: "scatter", symbol, symbolSize: hollow ? 10 : 7, itemStyle: mark(theme, color, hollow), z: 3, data: own.map((trial) => [trial.expected.mean, trial.value, trial.trial]) },
            ];
          }),
        ],
      };
    },
  });
})();

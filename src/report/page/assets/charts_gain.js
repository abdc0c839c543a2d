// Charts of the result: gain, measured values, effects of flags, convergence, and the convergence of two studies.
"use strict";

(() => {
  const { axis, errorBars, grid, legend, lines, mark, number, objectiveName, percent, rows, trialFlags, trialTitle } = ChartParts;
  const rowsHeight = (count) => 40 + 34 * count;
  const signed = (value) => `${value > 0 ? "+" : ""}${percent(value)}`;
  const zeroLine = (theme) => ({
    silent: true,
    symbol: "none",
    label: { show: false },
    lineStyle: { color: theme.muted, type: "dashed" },
    data: [{ xAxis: 0 }],
  });

  // Rows of points with error bars. Each row: { name, value, low, high, hollow, text }.
  function pointsWithBars({ theme, width }, data, { formatter, zero }) {
    const whole = data.filter((row) => row.low !== null && row.high !== null);
    return {
      grid: grid({ right: 30, top: 6 }),
      xAxis: axis(theme, formatter ? { axisLabel: { formatter } } : {}),
      yAxis: rows(theme, data.map((row) => row.name), width),
      tooltip: { formatter: ({ dataIndex }) => lines([data[dataIndex].name, data[dataIndex].text]) },
      series: [
        errorBars({
          id: "intervals",
          horizontal: true,
          color: theme.series[0],
          cap: 6,
          data: whole.map((row) => [data.indexOf(row), row.low, row.high]),
        }),
        {
          id: "points",
          type: "scatter",
          symbolSize: 11,
          data: data.map((row, index) => ({
            value: [row.value, index],
            symbol: row.hollow ? "diamond" : "circle",
            itemStyle: mark(theme, theme.series[0], row.hollow),
          })),
          markLine: zero ? zeroLine(theme) : undefined,
        },
      ],
    };
  }

  StudyCharts.register("gains", {
    height: ({ document }) => rowsHeight(document.gains.length),
    options: (context) =>
      pointsWithBars(
        context,
        context.document.gains.map((gain) => ({
          name: `over ${gain.over}`,
          value: gain.factor === null ? null : gain.factor - 1,
          low: gain.low,
          high: gain.high,
          hollow: gain.is_significant === false,
          text: gain.text,
        })),
        { formatter: signed, zero: true },
      ),
  });

  StudyCharts.register("values", {
    height: ({ document }) => rowsHeight(document.values.length),
    options: (context) =>
      pointsWithBars(
        context,
        context.document.values.map((row) => ({
          ...row,
          hollow: row.is_feasible === false,
          text: `${number(row.value)} (${number(row.low)} to ${number(row.high)}), measurements: ${row.measurements}`,
        })),
        { zero: false },
      ),
  });

  StudyCharts.register("flags", {
    height: ({ document }) => rowsHeight(document.flags.filter((flag) => flag.effect !== null).length),
    options: (context) =>
      pointsWithBars(
        context,
        context.document.flags
          .filter((flag) => flag.effect !== null)
          .map((flag) => ({
            name: `${flag.flag} = ${flag.value}`,
            value: flag.effect,
            low: flag.low,
            high: flag.high,
            hollow: !flag.is_kept,
            text: flag.text,
          })),
        { formatter: signed, zero: true },
      ),
  });

  // Kind of a measured trial's mark. The first that holds.
  const kinds = [
    { id: "earlier", name: "earlier context", holds: (trial) => trial.is_earlier_context },
    { id: "look", name: "live look", holds: (trial) => trial.is_look },
    { id: "disturbed", name: "disturbed", holds: (trial) => trial.is_disturbed },
    { id: "over", name: "over a limit", holds: (trial) => trial.is_feasible === false },
    { id: "confirmation", name: "confirmation", holds: (trial) => trial.is_confirmation },
    { id: "within", name: "within the limits", holds: () => true },
  ];
  const kindOf = (trial) => kinds.find((kind) => kind.holds(trial)).id;

  const kindStyles = (theme) => ({
    within: { symbol: "circle", symbolSize: 8, itemStyle: mark(theme, theme.series[0]) },
    over: { symbol: "circle", symbolSize: 8, itemStyle: mark(theme, theme.series[1], true) },
    confirmation: { symbol: "diamond", symbolSize: 14, itemStyle: mark(theme, theme.series[4]), z: 4 },
    look: { symbol: "triangle", symbolSize: 9, itemStyle: mark(theme, theme.series[3], true) },
    disturbed: { symbol: "rect", symbolSize: 8, itemStyle: mark(theme, theme.series[3]) },
    earlier: { symbol: "circle", symbolSize: 6, itemStyle: mark(theme, theme.faint) },
  });

  const valued = (document) => document.trials.filter((trial) => trial.value !== null);
  const best = (trials) => trials.filter((trial) => trial.best !== null).map((trial) => [trial.trial, trial.best]);

  StudyCharts.register("convergence", {
    options(context) {
      const { document, theme } = context;
      const trials = new Map(document.trials.map((trial) => [trial.trial, trial]));
      const styles = kindStyles(theme);
      const extent = [Math.min(...trials.keys()) - 0.5, Math.max(...trials.keys()) + 0.5];
      const edge = { min: extent[0], max: extent[1] };
      const winner = document.winner && trials.get(document.winner.trial);
      const failures = ["failed", "rejected"].map((state, row) => ({
        id: state,
        name: state,
        type: "scatter",
        xAxisIndex: 1,
        yAxisIndex: 1,
        symbol: state === "failed" ? "triangle" : "rect",
        symbolSize: state === "failed" ? 8 : [3, 10],
        itemStyle: mark(theme, state === "failed" ? theme.series[1] : theme.series[5]),
        data: document.trials.filter((trial) => trial.state === state).map((trial) => [trial.trial, row]),
      }));
      const marks = kinds
        .map((kind) => ({
          id: kind.id,
          name: kind.name,
          type: "scatter",
          ...styles[kind.id],
          data: valued(document).filter((trial) => kindOf(trial) === kind.id).map((trial) => [trial.trial, trial.value]),
        }))
        .filter((series) => series.data.length > 0)
        .reverse();
      const below = legend(theme, context.width, [...marks.map((series) => series.name), "best so far", ...(winner ? ["winner"] : [])]);
      return {
        legend: below.option,
        grid: [{ left: 66, right: 18, top: 18, bottom: below.height + 88 }, { left: 66, right: 18, height: 38, bottom: below.height + 42 }],
        xAxis: [
          axis(theme, { ...edge, axisLabel: { show: false }, axisTick: { show: false }, splitLine: { show: false } }),
          axis(theme, { ...edge, gridIndex: 1, name: "trial", nameGap: 24, minInterval: 1, splitLine: { show: false }, axisLabel: { showMinLabel: false, showMaxLabel: false } }),
        ],
        yAxis: [
          axis(theme),
          axis(theme, { gridIndex: 1, type: "category", data: ["failed", "rejected"], inverse: true, axisTick: { show: false }, splitLine: { show: false }, axisLabel: { formatter: (name) => name, interval: 0, hideOverlap: false, fontSize: 11 } }),
        ],
        tooltip: {
          formatter({ value, seriesName }) {
            const trial = trials.get(value[0]);
            const result = trial.value === null ? [trial.state, trial.reason ?? ""] : [`${objectiveName(context)}: ${number(trial.value)}`, seriesName];
            return lines([trialTitle(trial), ...result.map((text) => ChartParts.short(text, 70)), ...trialFlags(trial)]);
          },
        },
        series: [
          {
            id: "best",
            name: "best so far",
            type: "line",
            step: "end",
            symbol: "none",
            silent: true,
            lineStyle: { color: theme.series[2], width: 2 },
            itemStyle: { color: theme.series[2] },
            data: best(document.trials),
          },
          ...marks,
          ...failures,
          ...(winner && winner.value !== null
            ? [{ id: "winner", name: "winner", type: "scatter", symbol: ChartParts.star, symbolSize: 22, z: 5, itemStyle: { ...mark(theme, theme.series[2]), borderColor: theme.surface, borderWidth: 1 }, data: [[winner.trial, winner.value]] }]
            : []),
        ],
      };
    },
  });

  StudyCharts.register("comparison", {
    options({ document, theme, width }) {
      const dashes = ["solid", "dashed", "dotted"];
      const symbols = ["circle", "diamond", "triangle"];
      const studies = document.documents;
      const below = legend(theme, width, studies.flatMap(({ name }) => [`${name}: best so far`, `${name}: trials`]));
      return {
        legend: below.option,
        grid: grid({ bottom: below.height }),
        xAxis: axis(theme, { name: "trial", nameGap: 26, minInterval: 1 }),
        yAxis: axis(theme),
        tooltip: { formatter: ({ seriesName, value }) => lines([seriesName, `trial ${value[0]}: ${number(value[1])}`]) },
        series: studies.flatMap(({ name, document: study }, index) => [
          {
            id: `best-${index}`,
            name: `${name}: best so far`,
            type: "line",
            step: "end",
            symbol: "none",
            lineStyle: { color: theme.series[index], width: 2, type: dashes[index] },
            itemStyle: { color: theme.series[index] },
            data: best(study.trials),
          },
          {
            id: `trials-${index}`,
            name: `${name}: trials`,
            type: "scatter",
            symbol: symbols[index],
            symbolSize: 6,
            itemStyle: { ...mark(theme, theme.series[index]), opacity: 0.55 },
            data: valued(study).map((trial) => [trial.trial, trial.value]),
          },
        ]),
      };
    },
  });
})();

// The charts and components of Apache ECharts that a study's page uses.
export { getInstanceByDom, init, use } from "echarts/core";
import { use } from "echarts/core";
import { BarChart, CustomChart, LineChart, ParallelChart, ScatterChart } from "echarts/charts";
import {
  AriaComponent,
  GridComponent,
  LegendPlainComponent,
  MarkAreaComponent,
  MarkLineComponent,
  ParallelComponent,
  TooltipComponent,
} from "echarts/components";
import { SVGRenderer } from "echarts/renderers";

use([
  AriaComponent,
  BarChart,
  CustomChart,
  GridComponent,
  LegendPlainComponent,
  LineChart,
  MarkAreaComponent,
  MarkLineComponent,
  ParallelChart,
  ParallelComponent,
  ScatterChart,
  SVGRenderer,
  TooltipComponent,
]);

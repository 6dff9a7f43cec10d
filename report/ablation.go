package report

import (
	"cmp"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/mlrbfn/mlrbfn/internal/disk"
	"github.com/mlrbfn/mlrbfn/metrics"
)

// groupStyles distinguish near from far without colour.
var groupStyles = map[string]Series{
	metrics.Near: {Width: 1.8, Marker: "circle"},
	metrics.Far:  {Width: 1.8, Marker: "square", Dashes: []float64{6, 4}},
}

// numbered matches the names of methods that differ only in a number.
var numbered = regexp.MustCompile(`^(.+)-(\d+)$`)

// LayersChart returns the paper's figure of AUROC over the number of layers: for
// each group a curve NAME of the methods NAME-1, NAME-2, …, with the standard
// deviations over the seeds. It is nil if no two methods differ only in a number.
func LayersChart(results []metrics.Measurement) *Chart {
	type at struct {
		method string
		layers float64
	}
	curves := map[string][]at{}
	var names []string
	for _, method := range order(results, func(r metrics.Measurement) string { return r.Method }) {
		match := numbered.FindStringSubmatch(method)
		if match == nil {
			continue
		}
		layers, err := strconv.ParseFloat(match[2], 64)
		if err != nil {
			continue
		}
		names = add(names, match[1])
		curves[match[1]] = append(curves[match[1]], at{method, layers})
	}
	names = slices.DeleteFunc(names, func(name string) bool { return len(curves[name]) < 2 })
	if len(names) == 0 {
		return nil
	}
	const title = "AUROC over the number of layers"
	c := Chart{Name: "ablation-layers", Caption: title + "; whiskers are standard deviations over the seeds.",
		X: Axis{Label: "layers", Min: math.Inf(1), Max: math.Inf(-1)}, Y: Axis{Label: "AUROC, %", Max: 1, Percent: true}}
	found := index(results)
	lowest := 1.0
	var description []string
	for i, name := range names {
		slices.SortFunc(curves[name], func(a, b at) int { return cmp.Compare(a.layers, b.layers) })
		for _, group := range groups(results) {
			s := styled(groupStyles[group], name+", "+group+"-OOD", nil)
			s.Colour = lineStyles[i%len(lineStyles)].Colour
			var values []string
			for _, a := range curves[name] {
				c.X.Min, c.X.Max = min(c.X.Min, a.layers), max(c.X.Max, a.layers)
				v := found.value(AUROC, a.method, group, "mean")
				if math.IsNaN(v.Mean) {
					continue
				}
				if math.IsNaN(v.Std) {
					v.Std = 0
				}
				s.Points, s.Deviations = append(s.Points, metrics.Point{X: a.layers, Y: v.Mean}), append(s.Deviations, v.Std)
				values = append(values, fmt.Sprintf("%g: %s", a.layers, percent(v.Mean)))
				lowest = min(lowest, v.Mean-v.Std)
			}
			c.Series = append(c.Series, s)
			description = append(description, s.Name+": "+strings.Join(values, ", "))
		}
	}
	margin := max(0.05*(c.X.Max-c.X.Min), 0.05)
	c.X.Min, c.X.Max = c.X.Min-margin, c.X.Max+margin
	c.Y.Min = max(0, math.Floor(lowest*20-1e-9)/20)
	c.Text = title + " in per cent. " + strings.Join(description, "; ") + "."
	return &c
}

// StepsChart compares the AUROC of methods, from top to bottom: the first is the
// whole head, and each other one lacks a step.
func StepsChart(results []metrics.Measurement, methods []string) Chart {
	const title = "AUROC of heads that lack one step"
	c := Chart{Name: "steps", Caption: title + "; whiskers are standard deviations over the seeds.",
		X: Axis{Label: "AUROC, %", Min: 1, Percent: true}, Y: Axis{Min: -0.5, Max: float64(len(methods)) - 0.5}}
	found := index(results)
	var description []string
	for i, group := range groups(results) {
		s := styled(groupStyles[group], group+"-OOD", nil)
		s.Width, s.Colour = 0, lineStyles[i].Colour
		var values []string
		for k, method := range methods {
			v := found.value(AUROC, method, group, "mean")
			if math.IsNaN(v.Mean) {
				continue
			}
			if math.IsNaN(v.Std) {
				v.Std = 0
			}
			s.Points, s.Deviations = append(s.Points, metrics.Point{X: v.Mean, Y: float64(len(methods) - 1 - k)}), append(s.Deviations, v.Std)
			values = append(values, method+": "+percent(v.Mean))
			c.X.Min, c.X.Max = min(c.X.Min, v.Mean-v.Std), max(c.X.Max, v.Mean+v.Std)
		}
		c.Series = append(c.Series, s)
		if len(s.Points) > 0 && s.Points[0].Y == c.Y.Max-0.5 {
			x := s.Points[0].X
			c.Series = append(c.Series, Series{Name: methods[0] + ", " + group + "-OOD", Hidden: true, Colour: s.Colour, Width: 1, Dashes: []float64{1, 3},
				Points: []metrics.Point{{X: x, Y: c.Y.Min}, {X: x, Y: c.Y.Max}}})
		}
		description = append(description, s.Name+": "+strings.Join(values, ", "))
	}
	margin := 0.05*(c.X.Max-c.X.Min) + 0.002
	c.X.Min, c.X.Max = max(0, c.X.Min-margin), min(1, c.X.Max+margin)
	c.Y.Names = slices.Clone(methods)
	slices.Reverse(c.Y.Names)
	c.Text = title + " in per cent. " + strings.Join(description, "; ") + "."
	return c
}

// ablationFigures are the charts of the page's section on ablation.
func ablationFigures(results []metrics.Measurement) []*Chart {
	if c := LayersChart(results); c != nil {
		return []*Chart{c}
	}
	return nil
}

// DrawAblation writes the pictures of an ablation under dir, as PNG and SVG: by depth
// figures/depth, where there is something to draw, and unless steps are nil
// figures/steps; see [StepsChart].
func DrawAblation(dir string, results []metrics.Measurement, depth bool, steps []string) error {
	if Draw == nil {
		return nil
	}
	charts := map[string]Chart{}
	if c := LayersChart(results); depth && c != nil {
		charts["depth"] = *c
	}
	if steps != nil {
		charts["steps"] = StepsChart(results, steps)
	}
	for name, chart := range charts {
		for _, format := range []string{"png", "svg"} {
			picture, err := Draw(chart, format)
			if err != nil {
				return err
			}
			file := filepath.Join(dir, "figures", name+"."+format)
			err = os.MkdirAll(filepath.Dir(file), 0o777)
			if err == nil {
				err = disk.Write(file, disk.Bytes(picture))
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

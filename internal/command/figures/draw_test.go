package figures

import (
	"bytes"
	"encoding/xml"
	"image/png"
	"math"
	"strings"
	"testing"

	"github.com/mlrbfn/mlrbfn/metrics"
	"github.com/mlrbfn/mlrbfn/report"
)

// TestDraw draws charts of all kinds, with names and values that may be anything.
func TestDraw(t *testing.T) {
	inf := math.Inf(1)
	for name, c := range map[string]report.Chart{
		"lines": {X: report.Axis{Max: 1, Percent: true, Label: "x"}, Y: report.Axis{Max: 1}, Series: []report.Series{
			{Name: "one", Colour: "c0", Width: 2, Dashes: []float64{3, 1}, Points: []metrics.Point{{X: 0, Y: 0}, {X: 1, Y: 1}}},
			{Name: "hidden", Hidden: true, Colour: "faint", Width: 1, Points: []metrics.Point{{X: 0, Y: 1}, {X: 1, Y: 0}}},
			{Name: `<script>alert("1")</script>&` + strings.Repeat(" long", 20), Colour: "c1", Width: 1}}},
		"log":    {X: report.Axis{Min: 1e-3, Max: 1, Percent: true, Log: true}, Y: report.Axis{Max: 1}, Series: []report.Series{{Name: "one", Colour: "c0", Width: 1, Points: []metrics.Point{{X: 1e-3}, {X: 1, Y: 1}}}}},
		"bars":   {X: report.Axis{Min: -1e300, Max: 1e300}, Y: report.Axis{Max: 1}, Series: []report.Series{{Name: "one", Colour: "c0", Width: 1, Fill: 0.3, Bars: []float64{0, 1, 0.5}}}},
		"narrow": {X: report.Axis{Min: 1e15, Max: 1e15 + 0.25}, Y: report.Axis{Max: 1}, Series: []report.Series{{Name: "one", Colour: "c0", Width: 1, Fill: 0.3, Bars: []float64{0, 1, 0.5}}}},
		"marks": {X: report.Axis{Max: 4}, Y: report.Axis{Max: 1}, Series: []report.Series{{Name: "one", Colour: "c0", Width: 1, Marker: "square",
			Points: []metrics.Point{{X: 1, Y: 0.5}, {X: 3, Y: 0.5}}, Deviations: []float64{0, 0.1}}}},
		"names": {X: report.Axis{Max: 1, Percent: true}, Y: report.Axis{Min: -0.5, Max: 1.5, Names: []string{"one", "two"}}, Series: []report.Series{
			{Name: "one", Colour: "c0", Marker: "circle", Points: []metrics.Point{{X: 0.5, Y: 0}, {X: 0.7, Y: 1}}, Deviations: []float64{0.1, 0.2}}}},
		"empty": {X: report.Axis{Max: 1}, Y: report.Axis{Max: 1}},
	} {
		for _, format := range []string{"svg", "png"} {
			data, err := Draw(c, format)
			if err != nil {
				t.Errorf("%s.%s: %v", name, format, err)
				continue
			}
			if format == "png" {
				if img, err := png.Decode(bytes.NewReader(data)); err != nil || img.Bounds().Dx() < 400 {
					t.Errorf("%s: %v", name, err)
				}
				continue
			}
			var any struct{}
			if err := xml.Unmarshal(data, &any); err != nil || bytes.Contains(data, []byte("<script")) {
				t.Errorf("%s: %v: %.300s", name, err, data)
			}
			if name != "empty" && !bytes.Contains(data, []byte(">one<")) || bytes.Contains(data, []byte("hidden")) {
				t.Errorf("%s: its legend is not right", name)
			}
		}
	}
	if _, err := Draw(report.Chart{Name: "odd", X: report.Axis{Max: 1}, Y: report.Axis{Max: 1}, Series: []report.Series{{Name: "s", Width: 1, Points: []metrics.Point{{X: inf}}}}}, "svg"); err == nil || !strings.Contains(err.Error(), "odd, s") {
		t.Errorf("an infinite point: %v", err)
	}
	if _, err := Draw(report.Chart{X: report.Axis{Max: 1}, Y: report.Axis{Max: 1}}, "odd"); err == nil {
		t.Error("no error for an unknown format")
	}
}

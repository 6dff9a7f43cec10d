package report

import (
	"fmt"
	"image"
	"path/filepath"
	"testing"

	"github.com/mlrbfn/mlrbfn/internal/testenv/browser"
)

// BenchmarkMosaic opens a page of MostVerdicts images and scrolls through it in small steps and
// far jumps: how long opening and the frames take, and the longest work of the page itself in
// a frame that took 50 ms or more, which does not count the wait for a busy machine.
func BenchmarkMosaic(b *testing.B) {
	file := filepath.Join(b.TempDir(), "page.html")
	v := judged(40)
	var ready []image.Image
	for i := range 40 {
		img, _ := drawing(i)()
		ready = append(ready, img)
	}
	base := v.Items
	for i := range MostVerdicts - len(base) {
		item := base[i%len(base)]
		item.Image.Path = fmt.Sprintf("photos/<b>%d</b>/%05d.jpg", i%7, i)
		item.Image.Decode = func() (image.Image, error) { return ready[i%len(ready)], nil }
		item.OOD, item.Group = true, i%50
		v.Items = append(v.Items, item)
	}
	if err := WriteVerdicts(file, v); err != nil {
		b.Fatal(err)
	}
	tab := browser.Start(b).Open(b)
	tab.Show(Screens[0].Screen)
	for b.Loop() {
		tab.Go(browser.File(b, file))
		var opened float64
		tab.Eval(`performance.getEntriesByType("navigation")[0].loadEventEnd`, &opened)
		var frames [4]float64
		tab.Eval(`(async () => {
			const took = [], work = [];
			new PerformanceObserver((list) => {
				for (const f of list.getEntries()) work.push(f.scripts.reduce((sum, s) => sum + s.duration, 0) + (f.renderStart && f.startTime + f.duration - f.renderStart));
			}).observe({ type: "long-animation-frame" });
			let last = performance.now();
			for (let i = 0; i < 240; i++) {
				scrollBy(0, i % 40 === 20 ? 20000 : 300);
				await new Promise(requestAnimationFrame);
				const now = performance.now();
				took.push(now - last);
				last = now;
			}
			took.sort((a, b) => a - b);
			window.frames240 = [took[120], took[237], took[239], Math.max(0, ...work)];
		})()`, nil)
		tab.Wait(`window.frames240`)
		tab.Eval(`window.frames240`, &frames)
		b.ReportMetric(opened, "ms-to-open")
		for i, unit := range []string{"ms/frame-median", "ms/frame-p99", "ms/frame-max", "ms-of-work/frame-max"} {
			b.ReportMetric(frames[i], unit)
		}
		b.ReportMetric(0, "ns/op")
	}
}

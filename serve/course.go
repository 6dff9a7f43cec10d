package serve

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/mlrbfn/mlrbfn/pipeline/evaluation"
	"github.com/mlrbfn/mlrbfn/serve/internal/pool"
	"github.com/mlrbfn/mlrbfn/serve/store"
)

// coursePart is one span of time of one source, beside what is to be expected if its
// images are like the calibration images.
type coursePart struct {
	Start    time.Time      `json:"start"`
	Detector string         `json:"detector"`
	Source   string         `json:"source"`
	Images   int            `json:"images"`
	OOD      int            `json:"ood"`
	MeanP    float64        `json:"mean_p_value"`
	Classes  map[string]int `json:"classes"`
	evaluation.ExpectedVerdicts
}

// Bounds of GET /v1/drift/course.
const (
	usualSpan = 24 * time.Hour
	maxParts  = 1000
)

// course answers GET /v1/drift/course: flagged images, p-values and classes of each
// source over time, with the intervals for images like the calibration images, and the
// evidence of drift. Of detectors that were replaced there is nothing.
func (d *driftRequests) course(ctx context.Context, r *http.Request) (any, error) {
	q, err := query(r)
	if err != nil {
		return nil, err
	}
	name := q.Detector // here the name, as others may not know the hash
	if q.From.IsZero() {
		q.From = time.Now().Add(-usualSpan)
	}
	step, err := stepOf(r, time.Hour)
	if err != nil {
		return nil, err
	}
	to := q.To
	if to.IsZero() {
		to = time.Now()
	}
	if to.Sub(q.From) > maxParts*step {
		return nil, refuse(http.StatusBadRequest, "from and to may be %d steps apart", maxParts)
	}
	main, shadow, err := d.use(name)
	if err != nil {
		return nil, err
	}
	defer main.Release()
	defer shadow.Release()
	q.Detector = main.SHA256
	counts, err := d.counts.Count(ctx, q, step)
	if err != nil {
		return nil, asked(err)
	}
	evidence := d.watch.during(q.From.Truncate(max(step, time.Hour)), to, main.SHA256)
	evidence = slices.DeleteFunc(evidence, func(h sourceHistory) bool { return q.Source != "" && h.Source != q.Source })
	return map[string]any{"parts": courseOf(main, counts), "evidence": evidence}, nil
}

// courseOf puts the counts of all classes together.
func courseOf(d *pool.Loaded, counts []store.Count) []coursePart {
	parts := []coursePart{}
	for _, c := range counts {
		at := slices.IndexFunc(parts, func(p coursePart) bool { return p.Start.Equal(c.Start) && p.Source == c.Source })
		if at < 0 {
			at = len(parts)
			parts = append(parts, coursePart{Start: c.Start, Detector: d.Name, Source: c.Source, Classes: map[string]int{}})
		}
		p := &parts[at]
		p.MeanP += (c.MeanPValue - p.MeanP) * float64(c.N) / float64(p.Images+c.N)
		p.Images += c.N
		p.OOD += c.OOD
		p.Classes[c.Class] += c.N
	}
	for i := range parts {
		parts[i].ExpectedVerdicts = evaluation.ExpectVerdicts(d.Detector, parts[i].Images)
	}
	return parts
}

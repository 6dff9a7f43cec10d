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

// driftCourse answers GET /v1/drift/course: flagged images, p-values and classes of each
// source over time, with the intervals for images like the calibration images, and the
// evidence of drift. Of detectors that were replaced there is nothing.
func (s *Server) driftCourse(w http.ResponseWriter, r *http.Request) {
	q, err := query(r)
	if err != nil {
		s.failed(w, r, err)
		return
	}
	name := q.Detector // here the name, as others may not know the hash
	if q.From.IsZero() {
		q.From = time.Now().Add(-usualSpan)
	}
	step := time.Hour
	if text := r.URL.Query().Get("step"); text != "" {
		if step, err = time.ParseDuration(text); err != nil || step < time.Second {
			s.failed(w, r, refuse(http.StatusBadRequest, "step=%s: it is a time of 1s or more, such as 1h", text))
			return
		}
	}
	to := q.To
	if to.IsZero() {
		to = time.Now()
	}
	if to.Sub(q.From) > maxParts*step {
		s.failed(w, r, refuse(http.StatusBadRequest, "from and to may be %d steps apart", maxParts))
		return
	}
	main, shadow, err := s.use(name)
	if err != nil {
		s.failed(w, r, err)
		return
	}
	defer main.Release()
	defer shadow.Release()
	q.Detector = main.SHA256
	ctx, cancel := context.WithTimeout(r.Context(), s.opts.Timeout)
	defer cancel()
	counts, err := s.opts.Store.Count(ctx, q, step)
	if err != nil {
		s.storeError(w, r, err)
		return
	}
	evidence := s.drift.during(q.From.Truncate(max(step, time.Hour)), to, main.SHA256)
	evidence = slices.DeleteFunc(evidence, func(h sourceHistory) bool { return q.Source != "" && h.Source != q.Source })
	writeJSON(w, http.StatusOK, map[string]any{"parts": courseOf(main, counts), "evidence": evidence})
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

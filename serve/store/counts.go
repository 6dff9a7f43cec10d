package store

import (
	"context"
	"database/sql"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/mlrbfn/mlrbfn/internal/options"
)

// The table counts has the verdicts of each hour, counted by source, class, detector,
// whether they are flagged, and the bin of their p-values, so that counting does not read
// millions of rows. It follows from the verdicts and is no part of the audit trail.

// hour is the span of time of one row of the table.
const hour = time.Hour

// bin is the bin of a p-value, from 0, or -1 where it is none, in SQL and in Go.
var bin = fmt.Sprintf(`CASE WHEN p_value >= 1 THEN %d WHEN p_value >= 0 THEN CAST(floor(p_value * %d) AS BIGINT) ELSE -1 END`, PBins-1, PBins)

func binOf(p float64) int64 {
	switch {
	case p >= 1:
		return PBins - 1
	case p >= 0:
		return int64(p * PBins)
	}
	return -1
}

// tally counts verdicts that are being stored.
type tally map[tallyKey]*tallied

type tallyKey struct {
	hour                    int64
	source, class, detector string
	ood                     bool
	bin                     int64
}

type tallied struct {
	n   int64
	sum float64 // of p-values
}

func (t tally) count(v *Verdict) {
	key := tallyKey{v.Time.UnixMicro() / hour.Microseconds(), v.Source, v.Class, v.Detector, v.OOD, binOf(v.PValue)}
	to := t[key]
	if to == nil {
		to = &tallied{}
		t[key] = to
	}
	to.n++
	if !math.IsNaN(v.PValue) {
		to.sum += v.PValue
	}
}

// rows are those of the table that add what was counted, by addCounts.
func (t tally) rows() (rows [][]any) {
	for k, v := range t {
		rows = append(rows, []any{k.hour, k.source, k.class, k.detector, k.ood, k.bin, v.n, v.sum})
	}
	return rows
}

const addCounts = ` ON CONFLICT (hour, source, class, detector, ood, bin) DO UPDATE SET n = counts.n + excluded.n, sum = counts.sum + excluded.sum`

// counted returns the part of a statement that gives the rows span, source, class, ood,
// bin, n and sum of a query: whole hours from the table where it can answer, and the rest
// from the verdicts.
func (d *db) counted(q Query, step time.Duration, args *arguments) string {
	span := func(time string) string {
		if step == 0 {
			return `0`
		}
		return time + ` / ` + args.add(step.Microseconds())
	}
	rows := func(q Query) string {
		return `SELECT ` + span(`v.time`) + ` AS span, v.source, v.class, v.ood, ` + strings.ReplaceAll(bin, "p_value", "v.p_value") + ` AS bin, 1 AS n, v.p_value AS sum ` + q.from(args, "", false)
	}
	if !d.tallied || step%hour != 0 || q.beyondCounts() {
		return rows(q)
	}
	unit := hour.Microseconds()
	first, end := int64(math.MinInt64), int64(math.MaxInt64) // hours of the table that are meant
	var parts []string
	if !q.From.IsZero() {
		first = -floorDiv(-q.From.UnixMicro(), unit)
	}
	if !q.To.IsZero() {
		end = floorDiv(q.To.UnixMicro(), unit)
	}
	if first >= end {
		return rows(q)
	}
	before, after := q, q
	before.To, after.From = time.UnixMicro(first*unit), time.UnixMicro(end*unit)
	if !q.From.IsZero() && before.To.After(q.From) {
		parts = append(parts, rows(before))
	}
	if !q.To.IsZero() && after.From.Before(q.To) {
		parts = append(parts, rows(after))
	}
	hours := Query{Source: q.Source, Class: q.Class, Detector: q.Detector, OOD: q.OOD}
	table := strings.Replace(hours.from(args, "", false), "verdicts v", "counts v", 1)
	word := ` WHERE `
	if strings.Contains(table, word) {
		word = ` AND `
	}
	parts = append(parts, `SELECT `+span(`v.hour * `+fmt.Sprint(unit))+` AS span, v.source, v.class, v.ood, v.bin, v.n, v.sum `+table+word+`v.hour >= `+args.add(first)+` AND v.hour < `+args.add(end))
	return strings.Join(parts, ` UNION ALL `)
}

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

// beyondCounts reports whether a query asks for what the table does not have.
func (q *Query) beyondCounts() bool {
	return q.Image != "" || q.Reviewed != nil || len(q.Decisions) > 0 || q.AfterSeq != 0 || q.UntilSeq != 0 || q.WithFeatures
}

func (d *db) Count(ctx context.Context, q Query, step time.Duration) ([]Count, error) {
	if step != 0 && step < time.Second {
		return nil, options.Errorf("Step", "%v is shorter than a second", step)
	}
	var args arguments
	statement := `SELECT span, source, class, ood, bin, CAST(sum(n) AS BIGINT), sum(sum) FROM (` + d.counted(q, step, &args) + `) c GROUP BY 1, 2, 3, 4, 5 ORDER BY 1, 2, 3`
	var counts []Count
	var sums []float64 // of the p-values of each count, and how many there are
	var known []int
	err := query(ctx, d.read, func(row *sql.Rows) error {
		var at, bin int64
		var c Count
		var ood bool
		var sum sql.NullFloat64
		if err := row.Scan(&at, &c.Source, &c.Class, &ood, &bin, &c.N, &sum); err != nil {
			return err
		}
		if step != 0 {
			c.Start = time.UnixMicro(at * step.Microseconds()).UTC()
		}
		last := len(counts) - 1
		if last < 0 || counts[last].Start != c.Start || counts[last].Source != c.Source || counts[last].Class != c.Class {
			counts, sums, known, last = append(counts, Count{Start: c.Start, Source: c.Source, Class: c.Class}), append(sums, 0), append(known, 0), last+1
		}
		to := &counts[last]
		to.N += c.N
		if ood {
			to.OOD += c.N
		}
		if bin >= 0 && bin < PBins {
			to.PValues[bin] += c.N
			sums[last] += sum.Float64
			known[last] += c.N
		}
		return nil
	}, statement, args...)
	for i := range counts {
		if known[i] > 0 {
			counts[i].MeanPValue = sums[i] / float64(known[i])
		}
	}
	return counts, err
}

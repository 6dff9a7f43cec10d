package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mlrbfn/mlrbfn/internal/testenv"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
)

var ctx = context.Background()

func TestSQLite(t *testing.T) {
	name := "a store%41?#.db"
	if runtime.GOOS == "windows" {
		name = "a store%41#.db"
	}
	suite(t, func(t *testing.T) string { return filepath.Join(t.TempDir(), name) })
}

// suite runs the tests that a store in any database must pass; place returns that of
// an empty database.
func suite(t *testing.T, place func(t *testing.T) string) {
	for _, test := range []struct {
		name string
		run  func(t *testing.T, place string)
	}{
		{"round trip", testRoundTrip}, {"list", testList}, {"count", testCount}, {"features", testFeatures}, {"state", testState},
		{"reviews", testReviews}, {"altered", testAltered}, {"known heads", testKnownHeads}, {"replicas", testReplicas},
		{"prune", testPrune}, {"versions", testVersions}, {"killed", testKilled},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, place(t)) })
	}
}

func open(t *testing.T, place string) *db {
	t.Helper()
	return opened(t)(Open(ctx, place))
}

// opened returns what gives a store that was opened, until the test ends.
func opened(t *testing.T) func(Store, error) *db {
	t.Helper()
	return func(s Store, err error) *db {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
		return s.(*db)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

var start = time.Date(2026, 11, 22, 10, 0, 0, 123456789, time.FixedZone("", 3600))

// verdicts returns n verdicts, one per second.
func verdicts(n int) []Verdict {
	rng := rand.New(rand.NewPCG(1, uint64(n)))
	list := make([]Verdict, n)
	for i := range list {
		p := rng.Float64()
		list[i] = Verdict{
			ID: fmt.Sprintf("id-%04d", i), Time: start.Add(time.Duration(i) * time.Second), Source: []string{"gate", "dock"}[i%2], Name: fmt.Sprintf("%d.jpg", i),
			Image: fmt.Sprintf("%064x", i/2), Detector: "d1", Model: "m1", Threshold: -1.5,
			Verdict: detector.Verdict{Class: []string{"cat", "dog", "käse"}[i%3], Confidence: rng.Float64(), Score: rng.NormFloat64(), PValue: p, OOD: p < 0.2},
		}
	}
	return list
}

func testRoundTrip(t *testing.T, place string) {
	s := open(t, place)
	odd := Verdict{ID: "x\xff\x00y", Time: start, Name: strings.Repeat("n", 10_000), Verdict: detector.Verdict{Confidence: math.NaN(), Score: math.Inf(-1), PValue: math.Copysign(0, -1), OOD: true}, Threshold: math.Inf(1)}
	tiny := Verdict{ID: "tiny", Time: time.UnixMicro(-5), Verdict: detector.Verdict{Confidence: 1, Score: math.SmallestNonzeroFloat64, PValue: 0.1 + 0.2}, Threshold: -math.MaxFloat64}
	must(t, s.Add(ctx, []Verdict{odd, tiny, odd}))
	must(t, s.Add(ctx, append(verdicts(3), odd)))
	must(t, s.Add(ctx, []Verdict{odd}))
	must(t, s.Add(ctx, nil))
	for i, v := range append([]Verdict{odd, tiny}, verdicts(3)...) {
		got, err := s.Get(ctx, v.ID)
		must(t, err)
		want := v.normal()
		if math.IsNaN(want.Confidence) != math.IsNaN(got.Confidence) {
			t.Errorf("confidence %v, want %v", got.Confidence, want.Confidence)
		}
		if math.IsNaN(want.Confidence) {
			want.Confidence, got.Confidence = 0, 0
		}
		if got.Seq != int64(i+1) || got.Review != nil || !reflect.DeepEqual(got.Verdict, want) {
			t.Errorf("line %d\n%+v, want\n%+v", got.Seq, got, want)
		}
	}
	if _, err := s.Get(ctx, "none"); !errors.Is(err, ErrNotFound) {
		t.Errorf("%v", err)
	}
	if has, err := s.Has(ctx, append(make([]string, 1000), "tiny", "none")); err != nil || len(has) != 1 || !has["tiny"] {
		t.Errorf("%v, %v", has, err)
	}
	if err := s.Add(ctx, []Verdict{{}}); err == nil {
		t.Error("a verdict without an id was stored")
	}
	head, err := s.Verify(ctx)
	if must(t, err); head.Seq != 5 {
		t.Errorf("head %v", head)
	}
	must(t, s.Ping(ctx))
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if err := s.Add(ended, verdicts(10)); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

func ids(records []Record) string {
	var all []string
	for _, r := range records {
		all = append(all, strings.TrimPrefix(r.ID, "id-00"))
	}
	return strings.Join(all, " ")
}

func testList(t *testing.T, place string) {
	s := open(t, place)
	list := verdicts(12)
	must(t, s.Add(ctx, list))
	yes, no := true, false
	strange := slices.Clone(list)
	slices.SortFunc(strange, func(a, b Verdict) int {
		if a.PValue < b.PValue {
			return -1
		}
		return 1
	})
	var first, flagged []string
	for _, v := range strange[:4] {
		first = append(first, v.ID[5:])
	}
	for _, v := range list {
		if v.OOD {
			flagged = append(flagged, v.ID[5:])
		}
	}
	for _, test := range []struct {
		name  string
		query Query
		want  string
	}{
		{"newest", Query{Limit: 3}, "11 10 09"},
		{"next", Query{Limit: 3, UntilSeq: 9}, "08 07 06"},
		{"skip", Query{Limit: 3, Skip: 1, Order: Oldest}, "01 02 03"},
		{"strangest", Query{Limit: 4, Order: Strangest}, strings.Join(first, " ")},
		{"time", Query{From: list[3].Time, To: list[5].Time, Order: Oldest}, "03 04"},
		{"source and class", Query{Source: "dock", Class: "cat", Order: Oldest}, "03 09"},
		{"image", Query{Image: list[4].Image, Order: Oldest}, "04 05"},
		{"detector", Query{Detector: "d2"}, ""},
		{"ood", Query{OOD: &yes, Order: Oldest}, strings.Join(flagged, " ")},
		{"after", Query{AfterSeq: 10, OOD: nil, Reviewed: &no, Order: Oldest}, "10 11"},
		{"reviewed", Query{Reviewed: &yes}, ""},
		{"injected", Query{Source: "' OR 1=1 --"}, ""},
	} {
		got, err := s.List(ctx, test.query)
		must(t, err)
		if ids(got) != test.want {
			t.Errorf("%s: %q, want %q", test.name, ids(got), test.want)
		}
	}
}

func testReviews(t *testing.T, place string) {
	s := open(t, place)
	must(t, s.Add(ctx, verdicts(6)))
	yes, no := true, false
	must(t, s.Review(ctx, []Review{{ID: "id-0001", Decision: IsClass, Class: "cat", By: "ann", Time: start}, {ID: "id-0002", Decision: IsJunk}, {ID: "id-0003", Decision: IsFine}}))
	must(t, s.Review(ctx, []Review{{ID: "id-0001", Decision: IsNew, Class: "owl", By: "bob", Time: start}, {ID: "id-0002", Decision: Undo}}))
	for _, test := range []struct {
		query Query
		want  string
	}{
		{Query{Reviewed: &yes, Order: Oldest}, "01 03"},
		{Query{Reviewed: &no, Order: Oldest}, "00 02 04 05"},
		{Query{Decisions: []Decision{IsNew, IsClass}}, "01"},
		{Query{Decisions: []Decision{IsClass}}, ""},
		{Query{Decisions: []Decision{IsFine}, Source: "gate"}, ""},
	} {
		got, err := s.List(ctx, test.query)
		must(t, err)
		if ids(got) != test.want {
			t.Errorf("%+v: %q, want %q", test.query, ids(got), test.want)
		}
	}
	got, err := s.Get(ctx, "id-0001")
	must(t, err)
	if want := (Review{ID: "id-0001", Time: micro(start), By: "bob", Decision: IsNew, Class: "owl"}); got.Review == nil || *got.Review != want {
		t.Errorf("%+v, want %+v", got.Review, want)
	}
	all, err := s.Reviews(ctx, "id-0001")
	if must(t, err); len(all) != 2 || all[0].Class != "cat" || all[1].Class != "owl" {
		t.Errorf("%+v", all)
	}
	before, err := s.Head(ctx)
	must(t, err)
	for _, bad := range []Review{{ID: "none", Decision: IsFine}, {ID: "id-0001", Decision: "?"}, {ID: "id-0001", Decision: IsClass}} {
		if err := s.Review(ctx, []Review{{ID: "id-0004", Decision: IsFine}, bad}); err == nil || errors.Is(err, ErrNotFound) != (bad.ID == "none") {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	after, err := s.Verify(ctx)
	if must(t, err); after != before || after.Seq != 11 {
		t.Errorf("a review that was refused left a line: %v, then %v", before, after)
	}
}

func testCount(t *testing.T, place string) {
	s := open(t, place)
	list := verdicts(200)
	list[7].PValue, list[8].PValue = math.NaN(), 1
	must(t, s.Add(ctx, list))
	for _, step := range []time.Duration{0, time.Minute} {
		type key struct {
			at            int64
			source, class string
		}
		want, sums, known := map[key]*Count{}, map[key]float64{}, map[key]int{}
		for _, v := range list {
			k := key{source: v.Source, class: v.Class}
			if step > 0 {
				k.at = v.Time.Truncate(step).Unix()
			}
			c := want[k]
			if c == nil {
				c = &Count{}
				want[k] = c
			}
			if c.N++; v.OOD {
				c.OOD++
			}
			if v.PValue == v.PValue {
				c.PValues[min(int(v.PValue*PBins), PBins-1)]++
				sums[k] += v.PValue
				known[k]++
			}
		}
		got, err := s.Count(ctx, Query{}, step)
		must(t, err)
		if len(got) != len(want) {
			t.Errorf("%d counts, want %d", len(got), len(want))
		}
		for _, c := range got {
			k := key{source: c.Source, class: c.Class}
			if step > 0 {
				k.at = c.Start.Unix()
			}
			if w := want[k]; w == nil || c.N != w.N || c.OOD != w.OOD || c.PValues != w.PValues || math.Abs(c.MeanPValue-sums[k]/float64(known[k])) > 1e-12 {
				t.Errorf("%+v, want %+v", c, w)
			}
		}
	}
	some, err := s.Count(ctx, Query{Class: "cat", To: start.Add(9 * time.Second)}, 0)
	if must(t, err); len(some) != 2 || some[0].N+some[1].N != 3 {
		t.Errorf("%+v", some)
	}
	// Whole hours come from the table, the rest from the verdicts, and so do all counts of
	// a store that an old program wrote.
	for i := range list {
		list[i].ID, list[i].Time = fmt.Sprintf("later-%d", i), start.Add(time.Duration(i)*7*time.Minute)
	}
	must(t, s.Add(ctx, list[:120]))
	must(t, s.Add(ctx, list)) // 120 of them again
	_, err = s.write.ExecContext(ctx, `UPDATE mlrbfn_store SET version = 1`)
	must(t, err)
	old := opened(t)(OpenReadOnly(ctx, place))
	if old.tallied {
		t.Error("an old store has the table")
	}
	yes := true
	from, to := start.Add(91*time.Minute), start.Add(17*time.Hour+5*time.Minute)
	for i, q := range []Query{{}, {From: from}, {To: to}, {From: from, To: to}, {From: from, To: from.Add(20 * time.Minute)}, {From: from, To: from.Add(-time.Hour)},
		{From: start.Truncate(time.Hour), To: to, OOD: &yes}, {From: from, To: to, Source: "dock", Class: "cat", Detector: "d1"}, {Detector: "none"}, {From: from, AfterSeq: 250}} {
		for _, step := range []time.Duration{0, time.Hour, 24 * time.Hour, 90 * time.Minute} {
			got, err := s.Count(ctx, q, step)
			must(t, err)
			want, err := old.Count(ctx, q, step)
			must(t, err)
			for _, list := range [][]Count{got, want} {
				for i := range list {
					list[i].MeanPValue = math.Round(list[i].MeanPValue*1e12) / 1e12
				}
			}
			if (len(got) == 0) != (i == 5 || q.Detector == "none") || !reflect.DeepEqual(got, want) {
				t.Errorf("query %d, step %v: %+v, want %+v", i, step, got, want)
			}
		}
	}
	_, err = s.write.ExecContext(ctx, `DROP TABLE counts`)
	must(t, err)
	before, err := s.Count(ctx, Query{AfterSeq: -1}, 0) // which reads the verdicts
	must(t, err)
	after, err := open(t, place).Count(ctx, Query{}, 0) // opening makes the table anew
	if must(t, err); len(after) != len(before) || after[0].N != before[0].N || after[0].PValues != before[0].PValues {
		t.Errorf("%+v, want %+v", after, before)
	}
	if _, err := s.Count(ctx, Query{}, time.Millisecond); err == nil {
		t.Error("spans of a millisecond")
	}
}

func testFeatures(t *testing.T, place string) {
	s := open(t, place)
	list := verdicts(5)
	for i := range list[:4] {
		list[i].Features = []float32{float32(i), float32(math.Inf(1)), -0.5}
	}
	must(t, s.Add(ctx, list))
	must(t, s.Review(ctx, []Review{{ID: list[0].ID, Decision: IsFine}}))
	want := map[string][]float32{}
	expect := func() {
		t.Helper()
		got, err := s.Features(ctx, []string{"none", list[0].ID, list[1].ID, list[2].ID, list[3].ID, list[4].ID})
		must(t, err)
		with, err := s.List(ctx, Query{WithFeatures: true})
		if must(t, err); !reflect.DeepEqual(got, want) || len(with) != len(want) {
			t.Errorf("%v and %d records, want %v", got, len(with), want)
		}
	}
	for _, v := range list[:4] {
		want[v.ID] = v.Features
	}
	expect()
	n, err := s.DropFeatures(ctx, 4)
	if must(t, err); n != 2 {
		t.Errorf("dropped %d", n)
	}
	delete(want, list[1].ID)
	delete(want, list[2].ID)
	expect()
	_, err = s.Verify(ctx)
	must(t, err)
}

func testState(t *testing.T, place string) {
	a, b := open(t, place), open(t, place)
	if _, err := a.State(ctx, "n"); !errors.Is(err, ErrNotFound) {
		t.Errorf("%v", err)
	}
	refused := errors.New("refused")
	if err := a.UpdateState(ctx, "n", func(old []byte) ([]byte, error) { return []byte{1}, refused }); !errors.Is(err, refused) {
		t.Errorf("%v", err)
	}
	if _, err := a.State(ctx, "n"); !errors.Is(err, ErrNotFound) {
		t.Errorf("%v", err)
	}
	var wait sync.WaitGroup
	for i := range 4 {
		wait.Go(func() {
			for range 25 {
				err := []*db{a, b}[i%2].UpdateState(ctx, "n", func(old []byte) ([]byte, error) { return append(old, byte(i)), nil })
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wait.Wait()
	value, err := b.State(ctx, "n")
	if must(t, err); len(value) != 100 {
		t.Errorf("%d of 100 changes", len(value))
	}
	must(t, a.SetState(ctx, "ä/1", []byte{1}))
	must(t, b.SetState(ctx, "ä/%", []byte{2}))
	if all, err := a.States(ctx, "ä/"); err != nil || len(all) != 2 || all["ä/1"][0] != 1 || all["ä/%"][0] != 2 {
		t.Errorf("%v, %v", all, err)
	}
	must(t, a.SetState(ctx, "n", nil))
	value, err = b.State(ctx, "n")
	if must(t, err); len(value) != 0 {
		t.Errorf("%v", value)
	}
}

// testAltered alters a store behind its back in many ways. Verify names the line.
func testAltered(t *testing.T, place string) {
	s := open(t, place)
	must(t, s.Add(ctx, verdicts(5)))
	must(t, s.Review(ctx, []Review{{ID: "id-0001", Decision: IsClass, Class: "cat", By: "ann"}, {ID: "id-0002", Decision: IsJunk}}))
	must(t, s.Add(ctx, []Verdict{{ID: "last", Time: start}}))
	if _, err := s.Verify(ctx); err != nil {
		t.Fatal(err)
	}
	sum := func(table string, seq int) string {
		return fmt.Sprintf("(SELECT hash FROM %s WHERE seq = %d)", table, seq)
	}
	type alteration struct {
		line       int64
		statements string
	}
	alterations := []alteration{
		{3, "DELETE FROM verdicts WHERE seq = 3"},
		{1, "DELETE FROM verdicts WHERE seq = 1"},
		{7, "DELETE FROM reviews WHERE seq = 7"},
		{8, "DELETE FROM verdicts WHERE seq = 8"}, // the last
		{7, "DELETE FROM verdicts WHERE seq = 8; DELETE FROM reviews WHERE seq >= 7"},
		{1, "DELETE FROM verdicts; DELETE FROM reviews"},
		{3, "DELETE FROM verdicts WHERE seq = 3; UPDATE verdicts SET seq = 3 WHERE seq = 4"},
		{3, "UPDATE verdicts SET seq = 99 WHERE seq = 3; UPDATE verdicts SET seq = 3 WHERE seq = 4; UPDATE verdicts SET seq = 4 WHERE seq = 99"},
		{9, "INSERT INTO reviews SELECT 9, id, time, reviewer, decision, class, hash FROM reviews WHERE seq = 7"},
		{2, "INSERT INTO reviews SELECT 2, id, time, reviewer, decision, class, hash FROM reviews WHERE seq = 7"},
		{4, "UPDATE verdicts SET hash = " + sum("verdicts", 3) + " WHERE seq = 4"},
		{5, "UPDATE head SET seq = 4, hash = " + sum("verdicts", 4)}, // the head alone was set back
		{8, "UPDATE head SET hash = " + sum("verdicts", 4)},
		{9, "UPDATE head SET seq = 9"},
		{1, "DELETE FROM head"},
		{6, "UPDATE reviews SET decision = 'new' WHERE seq = 6"},
		{6, "UPDATE reviews SET class = 'dog' WHERE seq = 6"},
		{6, "UPDATE reviews SET reviewer = 'eve' WHERE seq = 6"},
		{6, "UPDATE reviews SET time = time + 1 WHERE seq = 6"},
		{6, "UPDATE reviews SET id = 'id-0003' WHERE seq = 6"},
		{4, "UPDATE verdicts SET ood = NOT ood WHERE seq = 4"},
		{4, "UPDATE verdicts SET score = NULL WHERE seq = 4"},
		// a boundary between two fields moves
		{8, "UPDATE verdicts SET id = 'las', source = 't' WHERE seq = 8"},
	}
	for _, column := range []string{"id", "source", "name", "image", "detector", "model", "class"} {
		alterations = append(alterations, alteration{5, "UPDATE verdicts SET " + column + " = " + column + " || 'x' WHERE seq = 5"})
	}
	for _, column := range []string{"time", "confidence", "score", "p_value", "threshold"} {
		alterations = append(alterations, alteration{2, "UPDATE verdicts SET " + column + " = " + column + " + 1 WHERE seq = 2"})
	}
	for _, a := range alterations {
		backup := dump(t, s)
		for statement := range strings.SplitSeq(a.statements, "; ") {
			if _, err := s.write.ExecContext(ctx, statement); err != nil {
				t.Fatalf("%s: %v", statement, err)
			}
		}
		_, err := s.Verify(ctx)
		if broken, ok := errors.AsType[*BrokenError](err); !ok || broken.Seq != a.line {
			t.Errorf("%s: %v, want line %d", a.statements, err, a.line)
		}
		backup()
	}
	_, err := s.Verify(ctx)
	must(t, err)
}

// dump copies the tables of the trail and returns what puts them back.
func dump(t *testing.T, s *db) (restore func()) {
	t.Helper()
	run := func(statement string) {
		t.Helper()
		_, err := s.write.ExecContext(ctx, statement)
		must(t, err)
	}
	tables := []string{"verdicts", "reviews", "head"}
	for _, table := range tables {
		run("CREATE TABLE backup_" + table + " AS SELECT * FROM " + table)
	}
	return func() {
		for _, table := range tables {
			run("DELETE FROM " + table)
			run("INSERT INTO " + table + " SELECT * FROM backup_" + table)
			run("DROP TABLE backup_" + table)
		}
	}
}

// testKnownHeads cuts lines off and sets the head back, as an owner of the database
// could. Only a head that was noted elsewhere shows it.
func testKnownHeads(t *testing.T, place string) {
	s := open(t, place)
	none, err := s.Verify(ctx)
	if must(t, err); none.String() != "0:"+strings.Repeat("0", 64) {
		t.Errorf("the head of an empty store is %v", none)
	}
	must(t, s.Add(ctx, verdicts(4)))
	four, err := s.Head(ctx)
	must(t, err)
	must(t, s.Add(ctx, verdicts(9)))
	nine, err := s.Verify(ctx, none, four)
	if must(t, err); nine.Seq != 9 {
		t.Errorf("head %v", nine)
	}
	again, err := ParseHead(nine.String())
	if must(t, err); again != nine {
		t.Errorf("%v, want %v", again, nine)
	}
	for _, bad := range []string{"", "9", "9:", "-1:" + nine.Hash, "09:" + nine.Hash, "9:" + nine.Hash[1:], "9 :" + nine.Hash} {
		if _, err := ParseHead(bad); err == nil {
			t.Errorf("%q is a head", bad)
		}
	}
	_, err = s.write.ExecContext(ctx, "DELETE FROM verdicts WHERE seq > 6")
	must(t, err)
	_, err = s.write.ExecContext(ctx, "UPDATE head SET seq = 6, hash = (SELECT hash FROM verdicts WHERE seq = 6)")
	must(t, err)
	if _, err := s.Verify(ctx, four); err != nil {
		t.Errorf("without the latest head nothing can show the cut, and the first four lines are as they were: %v", err)
	}
	_, err = s.Verify(ctx, nine, four)
	if broken, ok := errors.AsType[*BrokenError](err); !ok || broken.Seq != 7 {
		t.Errorf("%v, want line 7", err)
	}
	must(t, s.Add(ctx, verdicts(12)[7:])) // other lines in place of those
	_, err = s.Verify(ctx, nine)
	if broken, ok := errors.AsType[*BrokenError](err); !ok || broken.Seq != 9 {
		t.Errorf("%v, want line 9", err)
	}
	if _, err := s.Verify(ctx, four, Head{4, nine.Hash}); err == nil {
		t.Error("two heads of one number")
	}
}

// testReplicas has two processes' worth of stores append at once.
func testReplicas(t *testing.T, place string) {
	stores := []*db{open(t, place), open(t, place)}
	var wait sync.WaitGroup
	const writers, batches, size = 4, 10, 7
	for w := range writers {
		wait.Go(func() {
			s := stores[w%2]
			for b := range batches {
				batch := verdicts(size)
				for i := range batch {
					batch[i].ID = fmt.Sprintf("%d-%d-%d", w, b, i)
				}
				if err := s.Add(ctx, batch); err != nil {
					t.Error(err)
				}
				if err := s.Review(ctx, []Review{{ID: batch[0].ID, Decision: IsFine}}); err != nil {
					t.Error(err)
				}
				if b == batches/2 { // while others append
					if _, err := s.Verify(ctx); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wait.Wait()
	head, err := stores[0].Verify(ctx)
	if must(t, err); head.Seq != writers*batches*(size+1) {
		t.Errorf("%d lines, want %d", head.Seq, writers*batches*(size+1))
	}
}

func testVersions(t *testing.T, place string) {
	if _, err := OpenReadOnly(ctx, place); err == nil {
		t.Error("a store that does not exist was opened for reading")
	}
	s := open(t, place)
	must(t, s.Add(ctx, verdicts(2)))
	reader := opened(t)(OpenReadOnly(ctx, place))
	if got, err := reader.List(ctx, Query{}); err != nil || len(got) != 2 {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := reader.Verify(ctx); err != nil {
		t.Error(err)
	}
	must(t, reader.Ping(ctx))
	if err := reader.Add(ctx, verdicts(3)); !errors.Is(err, errReadOnly) {
		t.Errorf("%v", err)
	}
	if _, err := s.write.ExecContext(ctx, "UPDATE mlrbfn_store SET version = version + 1"); err != nil {
		t.Fatal(err)
	}
	for _, open := range []func(context.Context, string) (Store, error){Open, OpenReadOnly} {
		if _, err := open(ctx, place); !errors.Is(err, ErrNewer) {
			t.Errorf("a newer store: %v", err)
		}
	}
}

func TestNewID(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		id := NewID()
		if len(id) != 36 || id[14] != '7' || seen[id] {
			t.Fatalf("%q", id)
		}
		seen[id] = true
	}
	a := NewID()
	time.Sleep(2 * time.Millisecond)
	if b := NewID(); b <= a {
		t.Errorf("%s comes after %s", a, b)
	}
}

func TestName(t *testing.T) {
	for place, want := range map[string]string{
		"postgres://user:secret@host:5432/db?password=secret2": "postgres://user:xxxxx@host:5432/db",
		"postgres://user:%zz@host/":                            "PostgreSQL",
		"store.db":                                             "store.db",
	} {
		if got := Name(place); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// TestPlaces: what is no store of ours is refused, and stays as it is.
func TestPlaces(t *testing.T) {
	dir := t.TempDir()
	foreign := filepath.Join(dir, "foreign.db")
	other, err := sql.Open("sqlite", foreign)
	must(t, err)
	_, err = other.ExecContext(ctx, "CREATE TABLE verdicts (x)")
	must(t, errors.Join(err, other.Close()))
	text := filepath.Join(dir, "text")
	must(t, os.WriteFile(text, []byte("no database, and longer than the header of one would be, to be sure of that\n"), 0o666))
	before, err := os.ReadFile(foreign)
	must(t, err)
	for _, place := range []string{"", ":memory:", dir, text, foreign, filepath.Join(dir, "none", "store.db"), "postgres://%zz/", "postgres://nobody@127.0.0.1:1/x?sslmode=disable"} {
		if s, err := Open(ctx, place); err == nil {
			t.Errorf("%s was opened", place)
			s.Close()
		} else if strings.Contains(err.Error(), "secret") {
			t.Error(err)
		}
	}
	after, err := os.ReadFile(foreign)
	if must(t, err); string(after) != string(before) {
		t.Error("a foreign database was changed")
	}
	must(t, open(t, "sqlite:"+filepath.Join(dir, "new.db")).Ping(ctx))
}

// TestWitness: another program, which knows the text on the audit trail, finds the
// same hashes.
func TestWitness(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		testenv.Missing(t, "python3", "install Python 3", err)
	}
	place := filepath.Join(t.TempDir(), "store.db")
	s := open(t, place)
	odd := Verdict{ID: "odd", Time: time.UnixMicro(-7), Name: "k\u00e4se\x00\xff", Verdict: detector.Verdict{Confidence: math.NaN(), Score: math.Inf(-1), PValue: 1, OOD: true}, Threshold: -0.5}
	must(t, s.Add(ctx, append(verdicts(20), odd)))
	must(t, s.Review(ctx, []Review{{ID: "odd", Decision: IsNew, Class: "owl", By: "ann"}}))
	head, err := s.Verify(ctx)
	must(t, err)
	must(t, s.write.Close()) // what is in the log goes into the file
	s.write = nil
	out, err := exec.Command(python, filepath.Join("testdata", "verify.py"), place).CombinedOutput()
	if err != nil || strings.TrimSpace(string(out)) != head.String() {
		t.Errorf("%v: %s, want %v", err, out, head)
	}
}

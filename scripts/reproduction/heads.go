package main

import (
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/mlrbfn/mlrbfn/pipeline"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/report"
)

// Comparisons of the default score with everything else: on the stand-ins of several
// data sets, and on the superclasses of CIFAR-100.
const (
	heads = "heads"
	fine  = "superclasses"
)

var headsOn = []string{"cifar10", "cifar100", "imagenet200"}

// Goals, in AUROC and accuracy: by how much the default may be below the best single
// score, which is chosen afterwards, and below the linear head.
const (
	nearGoal     = .01
	farGoal      = .003
	accuracyGoal = .003
)

// standing is where the default score stands on one task with one backbone.
type standing struct {
	study                          report.Study
	own, head, ensemble, published report.Cell
	msp, best                      report.Cell
	bestName                       string            // of the single score with the largest near + far
	bestOf                         map[string]leader // by group
	differences                    [][]string        // differences.csv
	measured                       measured
}

// differences returns near and far AUROC minus those of the best single score, and the
// accuracy minus the linear head's.
func (s standing) below() (near, far, accuracy float64) {
	return s.own.Near.Mean - s.best.Near.Mean, s.own.Far.Mean - s.best.Far.Mean, s.own.Acc.Mean - s.msp.Acc.Mean
}

// leader is a single score with the highest AUROC on a group, chosen afterwards.
type leader struct {
	method string
	auroc  float64
}

// against says how far the default is above the leader of a group, with the interval of a paired bootstrap over images and sets.
func (s standing) against(group string) string {
	best := s.bestOf[group]
	for _, d := range s.differences {
		if d[2] != group || (d[0] != detector.JoinedScore || d[1] != best.method) && (d[1] != detector.JoinedScore || d[0] != best.method) {
			continue
		}
		var v [3]float64
		for i := range v {
			v[i], _ = strconv.ParseFloat(d[3+i], 64) // Evaluate wrote it
		}
		if d[1] == detector.JoinedScore {
			v = [3]float64{-v[0], -v[2], -v[1]}
		}
		return fmt.Sprintf("%s %.2f: %+.2f (%+.2f to %+.2f)", best.method, 100*best.auroc, 100*v[0], 100*v[1], 100*v[2])
	}
	return "–"
}

// readDifferences reads differences.csv of a report; nothing where it is none.
func readDifferences(dir string) ([][]string, error) {
	f, err := os.Open(filepath.Join(dir, "differences.csv"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return csv.NewReader(f).ReadAll()
}

// printAgainst prints how the default compares with the best near and the best far single score of each task.
func printAgainst(w io.Writer, all []standing) {
	fmt.Fprint(w, "\n| features | known classes | best near: default − it | best far: default − it | calibration error (chance), images |\n|---|---|---|---|---|\n")
	for _, s := range all {
		m := s.measured
		fmt.Fprintf(w, "| %s | %s | %s | %s | %.4f (%.4f), %d |\n", s.study.Backbone, s.study.Benchmark, s.against(pipeline.Near), s.against(pipeline.Far), m.Error, m.Chance, m.Images)
	}
	if n := float64(len(all)); n > 1 {
		var off, chance float64
		for _, s := range all {
			off, chance = off+s.measured.Error/n, chance+s.measured.Chance/n
		}
		fmt.Fprintf(w, "| | mean of %d | | | %.4f (%.4f) |\n", len(all), off, chance)
	}
	fmt.Fprint(w, "In parentheses: 95% interval of a paired bootstrap over the test images and over the sets of OOD images, of the mean over sets and seeds.\n")
}

// standings reads the reports below out/key.
func standings(out, key, title string) (all []standing, err error) {
	found, err := studies(out, key, title)
	if err != nil {
		return nil, err
	}
	for _, study := range found {
		s := standing{study: study, own: nothing, head: nothing, ensemble: nothing, published: nothing, msp: nothing, best: nothing, bestName: "–", bestOf: map[string]leader{}}
		for _, section := range report.PaperTable(report.AUROC, []report.Study{study}).Sections {
			for _, l := range section.Lines {
				cell := l.Cells[0]
				switch l.Method {
				case detector.JoinedScore:
					s.own = cell
				case detector.HeadScore:
					s.head = cell
				case "ensemble":
					s.ensemble = cell
				case detector.JoinedScore + asPublished.suffix:
					s.published = cell
				case "msp":
					s.msp = cell
				}
				for group, v := range map[string]float64{pipeline.Near: cell.Near.Mean, pipeline.Far: cell.Far.Mean} {
					if single(l.Method) && v > s.bestOf[group].auroc {
						s.bestOf[group] = leader{l.Method, v}
					}
				}
				if single(l.Method) && (math.IsNaN(sum(s.best)) || sum(cell) > sum(s.best)) {
					s.best, s.bestName = cell, l.Method
				}
			}
		}
		dir := filepath.Join(out, key, "reports", study.Backbone, linearHead.name)
		if s.differences, err = readDifferences(dir); err != nil {
			return nil, err
		}
		text, err := os.ReadFile(filepath.Join(dir, measuredFile))
		if err == nil {
			err = json.Unmarshal(text, &s.measured)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		all = append(all, s)
	}
	return all, nil
}

// compareHeads prints near and far AUROC and the accuracy of the default score, the
// heads' own, the ensemble, the best single score and the paper's head, a line for
// each backbone and task.
func (e *experiment) compareHeads(w io.Writer, tasks []task) error {
	fmt.Fprint(w, "| features | known classes | default | head | ensemble | best single score | linear head, MSP | paper's head | default − best single: near / far; accuracy − linear head |\n|---|---|---|---|---|---|---|---|---|\n")
	byBackbone, order := map[string][]standing{}, []string{}
	var every []standing
	for _, t := range tasks {
		all, err := standings(e.out, t.key, t.title)
		if err != nil {
			return err
		}
		for _, s := range all {
			near, far, accuracy := s.below()
			fmt.Fprintf(w, "| %s | %s | %s | %s | %s | %s %s | %s | %s | %s |\n", s.study.Backbone, s.study.Benchmark,
				brief(s.own), brief(s.head), brief(s.ensemble), s.bestName, brief(s.best), brief(s.msp), brief(s.published), signed(near, far, accuracy))
			every = append(every, s)
			if byBackbone[s.study.Backbone] == nil {
				order = append(order, s.study.Backbone)
			}
			byBackbone[s.study.Backbone] = append(byBackbone[s.study.Backbone], s)
		}
	}
	for _, b := range order {
		if all := byBackbone[b]; len(all) > 1 {
			summarise(w, b, all)
		}
	}
	printAgainst(w, every)
	if err := e.printWithout(w, tasks); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, `
Near / far AUROC, accuracy; in per cent, means %s
The best single score is the post-hoc one with the highest near + far on these very
test images, chosen afterwards; scores read a linear head that is trained on the features.
`, e.trained)
	return err
}

// printWithout prints the default score beside those without parts of the head, where
// these were run.
func (e *experiment) printWithout(w io.Writer, tasks []task) error {
	variants := []contest{linearHead, noDecision, noParts, noHead}
	var b strings.Builder
	var order []string
	complete := map[string][][]report.Cell{} // tasks of a backbone with all variants
	line := func(backbone, title string, cells []report.Cell) {
		fmt.Fprintf(&b, "| %s | %s |", backbone, title)
		for _, c := range cells {
			if math.IsNaN(c.Near.Mean + c.Far.Mean) {
				b.WriteString(" – |")
			} else {
				fmt.Fprintf(&b, " %.2f / %.2f |", 100*c.Near.Mean, 100*c.Far.Mean)
			}
		}
		b.WriteByte('\n')
	}
	for _, t := range tasks {
		all, err := studies(e.out, t.key, t.title)
		if err != nil {
			return err
		}
		for _, study := range all {
			cells := map[string]report.Cell{}
			for _, section := range report.PaperTable(report.AUROC, []report.Study{study}).Sections {
				for _, l := range section.Lines {
					cells[l.Method] = l.Cells[0]
				}
			}
			var found []report.Cell
			missing := 0
			for _, v := range variants {
				c, ok := cells[detector.JoinedScore+v.suffix]
				if !ok {
					c, missing = nothing, missing+1
				}
				found = append(found, c)
			}
			if missing < len(variants)-1 {
				line(study.Backbone, study.Benchmark, found)
			}
			if missing == 0 {
				if complete[study.Backbone] == nil {
					order = append(order, study.Backbone)
				}
				complete[study.Backbone] = append(complete[study.Backbone], found)
			}
		}
	}
	for _, backbone := range order {
		if all := complete[backbone]; len(all) > 1 {
			means := make([]report.Cell, len(variants))
			for _, cells := range all {
				for i, c := range cells {
					means[i].Near.Mean += c.Near.Mean / float64(len(all))
					means[i].Far.Mean += c.Far.Mean / float64(len(all))
				}
			}
			line(backbone, fmt.Sprintf("mean of %d", len(all)), means)
		}
	}
	if b.Len() == 0 {
		return nil
	}
	_, err := fmt.Fprintf(w, `
| features | known classes | default | without decision | without decision, density | without decision, density, guard |
|---|---|---|---|---|---|
%s`, &b)
	return err
}

// summarise prints means over the tasks of a backbone, on how many the goals are
// reached, what class hold-out expected, and the calibration error of all tasks'
// confidences together.
func summarise(w io.Writer, backbone string, all []standing) {
	n := float64(len(all))
	mean := func(of func(s standing) report.Cell) report.Cell {
		var c report.Cell
		for _, s := range all {
			own := of(s)
			c.Near.Mean, c.Far.Mean, c.Acc.Mean = c.Near.Mean+own.Near.Mean/n, c.Far.Mean+own.Far.Mean/n, c.Acc.Mean+own.Acc.Mean/n
		}
		return c
	}
	var near, far, accuracy float64
	var reached [3]int
	for _, s := range all {
		a, b, c := s.below()
		near, far, accuracy = near+a/n, far+b/n, accuracy+c/n
		for i, good := range []bool{a >= -nearGoal, b >= -farGoal, c >= -accuracyGoal} {
			if good {
				reached[i]++
			}
		}
	}
	fmt.Fprintf(w, "| %s | mean of %d | %s | %s | %s | %s | %s | %s | %s |\n", backbone, len(all),
		brief(mean(func(s standing) report.Cell { return s.own })), brief(mean(func(s standing) report.Cell { return s.head })),
		brief(mean(func(s standing) report.Cell { return s.ensemble })), brief(mean(func(s standing) report.Cell { return s.best })),
		brief(mean(func(s standing) report.Cell { return s.msp })), brief(mean(func(s standing) report.Cell { return s.published })), signed(near, far, accuracy))
	if !math.IsNaN(near) { // single scores were run
		fmt.Fprintf(w, "| | goals reached | near ≥ best − %g: %d of %d; far ≥ best − %g: %d; accuracy ≥ linear − %g: %d | | | | | | |\n",
			100*nearGoal, reached[0], len(all), 100*farGoal, reached[1], 100*accuracyGoal, reached[2])
	}
	if expected, found, off, caught, did := expectations(all); !math.IsNaN(expected) {
		fmt.Fprintf(w, "| | class hold-out | expected near %.1f, found %.1f, mean absolute difference of a task %.1f; expected to catch %.1f%% at 5%% false alarms, caught %.1f%% | | | | | | |\n",
			100*expected, 100*found, 100*off, 100*caught, 100*did)
	}
	if images, err := pooled(all); images > 0 {
		fmt.Fprintf(w, "| | confidence | expected calibration error %.4f of all tasks together (15 bins, %d confidences) | | | | | | |\n", err, images)
	}
}

// expectations compares what class hold-out says of a new class with the near-OOD
// images: AUROC and the share that is caught at 5% false alarms.
func expectations(all []standing) (expected, found, off, caught, did float64) {
	n := 0.
	for _, s := range all {
		if len(s.measured.Assessed) == 0 {
			continue
		}
		var auroc, c float64
		for _, a := range s.measured.Assessed {
			auroc += a.AUROC / float64(len(s.measured.Assessed))
			c += a.Caught / float64(len(s.measured.Assessed))
		}
		n++
		expected, found, off, caught = expected+auroc, found+s.own.Near.Mean, off+math.Abs(auroc-s.own.Near.Mean), caught+c
		for _, r := range s.study.Results {
			if r.Method == detector.JoinedScore && r.Group == pipeline.Near && r.Dataset == "mean" && r.Seed == "mean" {
				did += 1 - r.FPR95ID
			}
		}
	}
	return expected / n, found / n, off / n, caught / n, did / n
}

// pooled returns the expected calibration error of all tasks together.
func pooled(all []standing) (images int, err float64) {
	var bins [15]bin
	for _, s := range all {
		for _, b := range s.measured.Bins {
			to := &bins[min(int(b.Confidence*15), 14)]
			to.N, to.Confidence, to.Right = to.N+b.N, to.Confidence+float64(b.N)*b.Confidence, to.Right+float64(b.N)*b.Right
			images += b.N
		}
	}
	for _, b := range bins {
		err += math.Abs(b.Confidence-b.Right) / float64(images)
	}
	return images, err
}

// measured holds results of an evaluation that results.csv lacks.
type measured struct {
	Bins     []bin                  `json:"bins"`     // of the confidences, as metrics.ReliabilityBin; of all seeds together
	Images   int                    `json:"images"`   // whose confidences these are
	Error    float64                `json:"error"`    // expected calibration error, the mean over the seeds
	Chance   float64                `json:"chance"`   // what a perfect calibration would show, likewise
	Assessed []*pipeline.Assessment `json:"assessed"` // by class hold-out, of each seed
}

type bin struct {
	N          int     `json:"n"`
	Confidence float64 `json:"confidence"`
	Right      float64 `json:"right"`
}

const measuredFile = "measured.json"

// task is reports below out/key.
type task struct{ key, title string }

// single tells whether a method is a single post-hoc score.
func single(method string) bool {
	return !strings.HasPrefix(method, detector.JoinedScore) && method != detector.HeadScore && !strings.HasPrefix(method, "ensemble") && !slices.ContainsFunc(contests, func(c contest) bool {
		return c.suffix != "" && strings.HasSuffix(method, c.suffix)
	})
}

func sum(c report.Cell) float64 { return c.Near.Mean + c.Far.Mean }

func brief(c report.Cell) string {
	if math.IsNaN(sum(c)) {
		return "–"
	}
	return fmt.Sprintf("%.1f / %.1f, %.1f", 100*c.Near.Mean, 100*c.Far.Mean, 100*c.Acc.Mean)
}

func signed(near, far, accuracy float64) string {
	if math.IsNaN(near + far + accuracy) {
		return "–"
	}
	return fmt.Sprintf("%+.2f / %+.2f, %+.2f", 100*near, 100*far, 100*accuracy)
}

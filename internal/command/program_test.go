package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/mlrbfn/mlrbfn/head"
	"github.com/mlrbfn/mlrbfn/pipeline"
)

func TestExitCodes(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want int
	}{
		{nil, 0},
		{pflag.ErrHelp, 0},
		{errors.New("x"), 1},
		{Usagef("--x %d", 1), 2},
		{fmt.Errorf("%w: 3", ErrPartial), 3},
		{fmt.Errorf("%w: 3", ErrOOD), 4},
		{fmt.Errorf("train: %w", context.Canceled), 130},
		{errors.Join(context.Canceled, errors.New("x")), 130},
	} {
		if got := exitCode(tt.err); got != tt.want {
			t.Errorf("%v: exit code %d, want %d", tt.err, got, tt.want)
		}
	}
}

func TestHeadFlags(t *testing.T) {
	parse := func(args ...string) (pipeline.TrainOptions, error) {
		f := Flags("x", "", "", io.Discard)
		heads := AddHeadFlags(f, 0)
		if err := Parse(f, args); err != nil {
			return pipeline.TrainOptions{}, err
		}
		return heads.Options()
	}
	o, err := parse()
	if err != nil || !o.Head.Settings().Residual || o.Head.Settings().Layers != 2 || o.Train.Epochs != 20 || o.Train.Schedule != head.Cosine || o.Conditioning != (head.ConditioningOptions{Kind: head.Auto}) || o.Validation.Fraction != 0.1 || len(o.Seeds) != 1 {
		t.Errorf("defaults: %+v, %v", o, err)
	}
	o, err = parse("--paper", "--layers", "2")
	if err != nil || o.Head.Settings().Residual || o.Head.Settings().Layers != 2 || o.Head.Settings().Projection != 100 || o.Head.Settings().Recovery != 1.1 || o.Train.Epochs != 500 || o.Train.Schedule != head.Plateau || o.Train.LR != 0.001 || o.Conditioning.L2 || o.Conditioning.Kind != head.None {
		t.Errorf("the paper's with a flag beside it: %+v, %v", o, err)
	}
	if o, err = parse("--conditioning", "l2", "--network", "paper"); err != nil || !o.Conditioning.L2 || o.Conditioning.Kind != head.None || o.Head.Settings().Residual {
		t.Errorf("length alone: %+v, %v", o, err)
	}
	o, err = parse("--preset", "imagenet1k", "--epochs", "7", "--seeds", "3, 5", "--val", "some/features", "--depression", "none")
	if err != nil || o.Head.Settings().Layers != 5 || o.Train.Epochs != 7 || o.Seeds[1] != 5 || o.Validation.Features != "some/features" || !o.Head.Settings().NoDepression {
		t.Errorf("a preset with flags beside it: %+v, %v", o, err)
	}
	if o, err = parse("--preset", "mnist", "--seed", "9", "--val", "0"); err != nil || o.Head.Settings().Centroids != 200 || o.Train.Batch != 256 || o.Seeds[0] != 9 || !o.Validation.None {
		t.Errorf("another: %+v, %v", o, err)
	}
	for _, args := range []string{
		"--preset cifar", "--depression some", "--depression none", "--norm 1", "--network other", "--schedule none", "--conditioning l2+", "--conditioning sphere", "--shrinkage -1", "--paper --shrinkage 0.1", "--pca-dims 3", "--projection -1", "--balance some", "--seeds 1,1", "--seeds -1", "--seeds x", "--layers 0", "--epochs 0",
		"--lr 0", "--lr inf", "--batch 1", "--patience 0", "--patience -1", "--layers 101", "--norm 0.5", "--norm NaN", "--val -0.1", "--val 1", "--val NaN", "--layers four", "--nothing",
	} {
		if _, err := parse(strings.Fields(args)...); exitCode(err) != 2 {
			t.Errorf("%s: %v", args, err)
		}
	}
}

func TestProgress(t *testing.T) {
	var b strings.Builder
	p := NewProgress(&b, "images", false)
	for i := range 100 {
		p.Update(i+1, 100, "so far so good")
	}
	p.Close()
	p.Close()
	if got := b.String(); strings.Count(got, "\n") != 1 || !strings.HasPrefix(got, "100/100 images, ") || !strings.HasSuffix(got, "so far so good\n") || strings.Contains(got, "left") {
		t.Errorf("a quick run prints %q", got)
	}
	b.Reset()
	p = NewProgress(&b, "", false)
	for i := range 40 { // as evaluate does, with many scores
		p.Phase(fmt.Sprintf("score %d, training", i), 2, 2)
		p.Phase(fmt.Sprintf("score %d", i), 1, 3)
	}
	p.Phase("scoring", 3, 3)
	p.Close()
	if got := b.String(); got != "3/3 sets, scoring\n" {
		t.Errorf("quick phases print %q", got)
	}
	b.Reset()
	p = NewProgress(&b, "", false)
	p.terminal, p.w = true, &b
	p.Phase("training", 1, 2)
	p.Phase("scoring", 3, 3)
	p.Close()
	if got := b.String(); strings.Count(got, "\n") != 1 || strings.Count(got, "\r") != 2 {
		t.Errorf("on a terminal two phases print %q", got)
	}
	for running, most := range map[time.Duration]time.Duration{time.Second: 5 * time.Second, 10 * time.Minute: 2 * time.Minute, 10 * time.Hour: 5 * time.Minute} {
		if got := (&Progress{}).every(running); got != most {
			t.Errorf("after %v a line is shown every %v", running, got)
		}
	}
	// What was done before the first update took none of the time that is counted.
	p = NewProgress(&b, "epochs", false)
	p.start = time.Now().Add(-time.Hour)
	p.Update(50, 100, "")
	if strings.Contains(p.line, "left") {
		t.Errorf("the first update prints %q", p.line)
	}
	p.from = time.Now().Add(-10 * time.Second)
	if got := p.render(60, 100, ""); !strings.HasPrefix(got, "60/100 epochs, 1 epochs/s, 40s left") {
		t.Errorf("after a resumption it prints %q", got)
	}
	p.from = time.Now().Add(-time.Millisecond)
	if got := p.render(100, 100, ""); strings.Contains(got, "e+") {
		t.Errorf("quick epochs print %q", got)
	}
	p.from = time.Now().Add(-10 * time.Second)
	if got := p.render(60, -1, "2 unreadable"); got != "60 epochs, 1 epochs/s, more are being found, 2 unreadable" {
		t.Errorf("of an unknown total: %q", got)
	}
	// The accuracy of one class says nothing.
	for _, one := range []bool{true, false} {
		p = NewProgress(&b, "epochs", false)
		newEpochs(p, pipeline.TrainOptions{Seeds: []uint64{0}, Train: head.TrainOptions{Epochs: 2}}, one).update(0, head.Epoch{Epoch: 1, ValAccuracy: 1})
		if strings.Contains(p.line, "accuracy") == one {
			t.Errorf("an epoch prints %q", p.line)
		}
	}
	quiet := NewProgress(&b, "images", true)
	quiet.Update(1, 1, "")
	quiet.Close()
}

func TestCommandLine(t *testing.T) {
	got := CommandLine("evaluate", []string{"--near", "a=b/c", "--out", "my report", "it's", ""})
	if want := `evaluate --near a=b/c --out 'my report' 'it'\''s' ''`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

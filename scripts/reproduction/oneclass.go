package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/internal/command"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
)

// One class is known at a time, as in a folder of good parts and nothing else: the
// other classes of the data set are near-OOD.
const oneClass = "oneclass"

// othersSet names the set of test images of all other classes.
const othersSet = "others"

// oneClassOn are the data sets whose classes are taken one by one, and with which
// backbones.
var (
	oneClassOn     = []string{"imagenet200", "cifar10"}
	oneClassModels = []string{"efficientnet-lite0", "vit-tiny-p16"}
	oneClassScores = []string{detector.JoinedScore, "knn", "mds", "mds++", "she-cos"}
)

// alone is a class that is the only known one; "" for all.
type alone struct{ base, class string }

func (a alone) key() string { return filepath.Join(oneClass, a.base, a.class) }

// runOneClass measures each class of the data sets alone, and prints means over them.
func (e *experiment) runOneClass(ctx context.Context, w io.Writer, models []string, seeds string, epochs int) error {
	if e.features != "" {
		return command.Usagef("--features: oneclass knows classes and images by the features of its own runs; --data names the images")
	}
	_, standIns := grids()
	fmt.Fprintf(w, `Near / far AUROC in per cent, means over the classes, each known alone

| features | data set | classes | default | KNN | MDS | MDS++ | SHE (cosine) |
|---|---|---|---|---|---|---|---|
`)
	var two strings.Builder
	for _, base := range oneClassOn {
		g := standIns[base]
		g.models, g.near = oneClassModels, []set{{name: othersSet}}
		classes, err := classesOf(g, e.data)
		if err != nil {
			return err
		}
		for _, class := range classes {
			e.grid, e.alone = g, alone{base, class}
			e.key = e.alone.key()
			if err := e.run(ctx, models, seeds, epochs); err != nil {
				return err
			}
		}
		if err := e.printOneClass(w, &two, g.title, base, classes); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(w, `
Of the test images of the class, how many per cent are flagged where at most 5 are
promised; of the near and far OOD images, how many. – is a detector that flags nothing,
since too few images calibrate.

| features | data set | calibrate | default | KNN | MDS | MDS++ | SHE (cosine) | default, %d folds |
|---|---|---|---|---|---|---|---|---|
%s`, curveFolds, &two)
	return err
}

// classesOf are the names of the folders of a grid's test images.
func classesOf(g grid, data string) (classes []string, err error) {
	entries, err := os.ReadDir(filepath.Join(data, g.test.root))
	for _, e := range entries {
		if e.IsDir() {
			classes = append(classes, e.Name())
		}
	}
	return classes, err
}

// isolate writes the feature sets of the class that is known alone: its training and
// test images, and the test images of all other classes.
func (e *experiment) isolate(ctx context.Context, backbone, train, test string) (ownTrain, ownTest, others string, err error) {
	s, err := features.Open(ctx, test)
	if err != nil {
		return "", "", "", err
	}
	classes := s.Classes
	s.Close()
	is := func(y int64) bool { return y >= 0 && classes[y] == e.alone.class }
	t, err := features.Open(ctx, train)
	if err != nil {
		return "", "", "", err
	}
	names := t.Classes
	t.Close()
	for _, part := range []struct {
		from, name, only string
		takes            func(int64) bool
		to               *string
	}{
		{train, "train", e.alone.class, func(y int64) bool { return y >= 0 && names[y] == e.alone.class }, &ownTrain},
		{test, "test", e.alone.class, is, &ownTest},
		{test, "others", "", func(y int64) bool { return !is(y) }, &others},
	} {
		dir, n, err := e.choose(ctx, part.from, backbone, part.name, part.only, part.takes)
		if err != nil {
			return "", "", "", err
		}
		if n == 0 {
			return "", "", "", fmt.Errorf("%s has no images of %s for the set %s", part.from, e.alone.class, part.name)
		}
		*part.to = dir
	}
	return ownTrain, ownTest, others, nil
}

// printOneClass prints a line of the first table for each backbone, and writes one of
// the second to two.
func (e *experiment) printOneClass(w, two io.Writer, title, base string, classes []string) error {
	first, err := studies(e.out, alone{base, classes[0]}.key(), "")
	if err != nil {
		return err
	}
	for _, study := range first {
		cells := map[string]*[3]float64{}
		var flags flagged
		for _, class := range classes {
			key := alone{base, class}.key()
			if err := addMeans(cells, e.out, key, study.Backbone, 1/float64(len(classes))); err != nil {
				return err
			}
			if err := flags.add(e.out, key, study.Backbone); err != nil {
				return err
			}
		}
		fmt.Fprintf(w, "| %s | %s | %d |", study.Backbone, title, len(classes))
		for _, name := range oneClassScores {
			if c := cells[name]; c != nil {
				fmt.Fprintf(w, " %.1f / %.1f |", 100*c[0], 100*c[1])
			} else {
				fmt.Fprint(w, " – |")
			}
		}
		fmt.Fprintf(w, "\n")
		fmt.Fprintf(two, "| %s | %s | %s |%s\n", study.Backbone, title, flags.calibration(), flags.cells())
	}
	return nil
}

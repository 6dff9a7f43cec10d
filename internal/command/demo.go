package command

import (
	"bytes"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"image"
	"image/png"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/mlrbfn/mlrbfn/extractor"
	"github.com/mlrbfn/mlrbfn/extractor/preprocess"
	"github.com/mlrbfn/mlrbfn/internal/disk"
)

var _ = declare("demo", 160, "[--out DIR] [flags]", "Run extract, train and detect on pictures that come with the program",
	`Cuts photographs of brick, grass and gravel into small images, learns the three, and judges parts of them that it has not seen, and parts of photographs of a cat, a cup of coffee and a rocket. Prints each command that it runs. It takes about a minute.`, addDemo)

func addDemo(c *command) {
	out := c.String("out", "mlrbfn-demo", "`DIR` to write images, features and the detector to; it must not exist, or be of a demo")
	c.means("out", "Out")
	model := c.String("model", defaultModel, "`DIR` or name of the model")
	c.means("model", "Model")
	library := AddLibraryFlag(c.FlagSet)
	c.run = func(ctx context.Context, s Streams) error {
		photos, err := extractor.FindShared(filepath.Join("demo", demoKnown[0]), filepath.Join(".setup", "photos", demoKnown[0]))
		if err != nil {
			return fmt.Errorf("the photographs of the demonstration come with the packages of mlrbfn (`pip install mlrbfn`), or with `make setup`: %w", err)
		}
		if err := extractor.InitRuntime(*library); err != nil {
			return err
		}
		return runDemo(ctx, filepath.Dir(photos), *out, *model, s)
	}
}

// defaultModel is the name of the model that comes with the program.
const defaultModel = "efficientnet-lite0"

// The photographs of the demonstration, and how they are cut: a known one gives 75
// images to learn from and 25 new ones, another gives 16 that are OOD.
var (
	demoKnown = []string{"brick.png", "grass.png", "gravel.png"}
	demoOther = []string{"chelsea.png", "coffee.png", "rocket.jpg"}
)

const (
	demoSide  = 48 // pixels of an image
	demoRows  = 10 // images of a known photograph, each way
	demoParts = 4  // of another
)

func runDemo(ctx context.Context, photos, out, model string, s Streams) error {
	w := ForPeople(s.Out)
	images := filepath.Join(out, "images")
	if err := cutDemo(ctx, photos, out, images); err != nil {
		return err
	}
	features, detector, verdicts := filepath.Join(out, "features"), filepath.Join(out, "textures.safetensors"), filepath.Join(out, "verdicts.csv")
	run := func(to io.Writer, name string, args ...string) error {
		fmt.Fprintf(w, "\n$ %s\n", CommandLine("mlrbfn", append([]string{name}, args...)))
		_, err := execute(ctx, commands[name].make().cmd, args, Streams{In: strings.NewReader(""), Out: to, Err: s.Err})
		if err != nil {
			err = fmt.Errorf("%s: %w", name, err)
		}
		return err
	}
	var table bytes.Buffer
	err := run(s.Out, "extract", "--model", model, "--images", filepath.Join(images, "known"), "--out", features)
	if err == nil {
		err = run(s.Out, "train", "--features", features, "--out", detector, "--force")
	}
	if err == nil {
		err = run(&table, "detect", "--detector", detector, "--format", "csv", filepath.Join(images, "new"))
	}
	if err == nil {
		err = disk.Write(verdicts, disk.Bytes(table.Bytes()))
	}
	if err != nil {
		return err
	}
	return tellDemo(w, &table, verdicts)
}

// cutDemo writes images/known/CLASS and images/new/PHOTOGRAPH under out.
func cutDemo(ctx context.Context, photos, out, images string) error {
	if entries, err := os.ReadDir(out); err == nil && len(entries) > 0 {
		if _, err := os.Stat(filepath.Join(images, "known", "brick")); err != nil {
			return Usagef("--out %s holds something that is not of a demo", out)
		}
	}
	for _, name := range slices.Concat(demoKnown, demoOther) {
		data, err := disk.ReadFile(filepath.Join(photos, name), disk.Config)
		if err != nil {
			return err
		}
		photo, err := preprocess.Decode(ctx, data, preprocess.DecodeOptions{})
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		class, each := strings.TrimSuffix(name, filepath.Ext(name)), demoParts
		known := slices.Contains(demoKnown, name)
		if known {
			each = demoRows
		}
		size := photo.Rect.Size()
		for i := range each * each {
			x, y := i%each*(size.X-demoSide)/(each-1), i/each*(size.Y-demoSide)/(each-1)
			part := "new"
			if known && ((i%each)%2 != 0 || (i/each)%2 != 0) {
				part = "known"
			}
			file := filepath.Join(images, part, class, fmt.Sprintf("%02d.png", i))
			err := os.MkdirAll(filepath.Dir(file), 0o777)
			if err == nil {
				err = disk.Write(file, func(w io.Writer) error {
					return png.Encode(w, photo.SubImage(image.Rect(x, y, x+demoSide, y+demoSide)))
				})
			}
			if err != nil {
				return err
			}
		}
	}
	return ctx.Err()
}

// tellDemo counts the verdicts of each photograph.
func tellDemo(w io.Writer, table io.Reader, file string) error {
	rows, err := csv.NewReader(table).ReadAll()
	if err != nil || len(rows) < 2 {
		return errors.Join(errors.New("detect gave no verdicts"), err)
	}
	path, class, ood := slices.Index(rows[0], "path"), slices.Index(rows[0], "class"), slices.Index(rows[0], "ood")
	fmt.Fprintf(w, "\n%s has a line for each image. In short:\n", file)
	for _, name := range slices.Concat(demoKnown, demoOther) {
		name = strings.TrimSuffix(name, filepath.Ext(name))
		images, right, flagged := 0, 0, 0
		for _, row := range rows[1:] {
			if filepath.Base(filepath.Dir(filepath.FromSlash(row[path]))) != name {
				continue
			}
			images++
			if row[class] == name {
				right++
			}
			if row[ood] == "true" {
				flagged++
			}
		}
		if slices.Contains(demoKnown, name+".png") {
			fmt.Fprintf(w, "  %-8s known: %d of %d given its class, %d flagged as out-of-distribution\n", name, right, images, flagged)
		} else {
			fmt.Fprintf(w, "  %-8s new:   %d of %d flagged as out-of-distribution\n", name, flagged, images)
		}
	}
	return nil
}

// DemoPictures names the photographs that packages bring for the demonstration.
func DemoPictures() []string { return slices.Concat(demoKnown, demoOther) }

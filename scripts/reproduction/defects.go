package main

import (
	"context"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/jpeg"
	"image/png"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/mlrbfn/mlrbfn/extractor"
	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/internal/command"
	"github.com/mlrbfn/mlrbfn/pipeline"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
)

// One class as people have it, good parts and nothing else: crops of textures, and the same
// with defects that are drawn into them.
const defectsKey = "defects"

// The images of a texture.
const (
	goodImages  = 300
	freshImages = 100 // good, that nothing was trained on
	badImages   = 25  // of each kind
	cropSide    = 160
	fewFlagged  = 0.03
)

var (
	localDefects = []string{"scratch", "spot", "hole", "pasted", "smudge"}
	wholeChanges = []string{"blur", "colour", "noise"}
	textures     = []struct {
		name string
		tint [3]float64
	}{{"grass", [3]float64{.75, 1, .6}}, {"gravel", [3]float64{1, .92, .85}}, {"brick", [3]float64{1, .7, .6}}}
)

// surfaces draws images of textures.
type surfaces struct {
	rng   *rand.Rand
	greys []image.Image
}

// crop draws a good part.
func (s *surfaces) crop(texture, side int) *image.NRGBA {
	grey, out := s.greys[texture], image.NewNRGBA(image.Rect(0, 0, side, side))
	b := grey.Bounds()
	x0, y0, flip := b.Min.X+s.rng.IntN(b.Dx()-side), b.Min.Y+s.rng.IntN(b.Dy()-side), s.rng.IntN(2) == 0
	light, tint := .93+.14*s.rng.Float64(), textures[texture].tint
	for c := range tint {
		tint[c] *= light * (1 + .01*s.rng.NormFloat64())
	}
	for y := range side {
		for x := range side {
			from := x
			if flip {
				from = side - 1 - x
			}
			v := float64(color.GrayModel.Convert(grey.At(x0+from, y0+y)).(color.Gray).Y) + 3*s.rng.NormFloat64()
			out.SetNRGBA(x, y, rgb(v*tint[0], v*tint[1], v*tint[2]))
		}
	}
	return out
}

func rgb(r, g, b float64) color.NRGBA {
	at := func(v float64) uint8 { return uint8(min(max(math.Round(v), 0), 255)) }
	return color.NRGBA{at(r), at(g), at(b), 255}
}

// each changes the pixels of an image.
func each(img *image.NRGBA, change func(x, y int, v [3]float64) [3]float64) {
	for y := range img.Rect.Dy() {
		for x := range img.Rect.Dx() {
			c := img.NRGBAAt(x, y)
			v := change(x, y, [3]float64{float64(c.R), float64(c.G), float64(c.B)})
			img.SetNRGBA(x, y, rgb(v[0], v[1], v[2]))
		}
	}
}

// blurred returns an image whose pixels are Gaussian means.
func blurred(img *image.NRGBA, sigma float64) *image.NRGBA {
	out := image.NewNRGBA(img.Rect)
	reach, side := int(3*sigma), img.Rect.Dx()
	for y := range side {
		for x := range side {
			var sum [3]float64
			var weight float64
			for dy := -reach; dy <= reach; dy++ {
				for dx := -reach; dx <= reach; dx++ {
					w := math.Exp(-float64(dx*dx+dy*dy) / (2 * sigma * sigma))
					c := img.NRGBAAt(min(max(x+dx, 0), side-1), min(max(y+dy, 0), side-1))
					sum[0], sum[1], sum[2], weight = sum[0]+w*float64(c.R), sum[1]+w*float64(c.G), sum[2]+w*float64(c.B), weight+w
				}
			}
			out.SetNRGBA(x, y, rgb(sum[0]/weight, sum[1]/weight, sum[2]/weight))
		}
	}
	return out
}

// defect draws a bad part.
func (s *surfaces) defect(texture int, kind string) *image.NRGBA {
	img := s.crop(texture, cropSide)
	between := func(a, b float64) float64 { return a + (b-a)*s.rng.Float64() }
	x0, y0, r := between(32, cropSide-32), between(32, cropSide-32), between(1.3, 2.7)
	// toward mixes a colour into what is nearer than far, by at most most.
	toward := func(of [3]float64, most float64, far func(x, y float64) float64) {
		each(img, func(x, y int, v [3]float64) [3]float64 {
			w := most * min(max(.5-far(float64(x), float64(y)), 0), 1)
			for c := range v {
				v[c] += w * (of[c] - v[c])
			}
			return v
		})
	}
	disc := func(x, y float64) float64 { return math.Hypot(x-x0, y-y0) - r }
	switch kind {
	case "scratch":
		angle, length, v := between(0, math.Pi), between(7, 16), []float64{30, 225}[s.rng.IntN(2)]
		dx, dy := math.Cos(angle), math.Sin(angle)
		toward([3]float64{v, v, v}, 1, func(x, y float64) float64 {
			along := min(max((x-x0)*dx+(y-y0)*dy, -length/2), length/2)
			return math.Hypot(x-x0-along*dx, y-y0-along*dy) - .7
		})
	case "spot":
		toward([3]float64{between(20, 110), between(20, 110), between(20, 110)}, between(.5, .8), disc)
	case "hole":
		toward([3]float64{15, 15, 15}, 1, disc)
	case "pasted":
		from, side := (texture+1+s.rng.IntN(len(textures)-1))%len(textures), 8+s.rng.IntN(5)
		other := s.crop(from, side)
		each(other, func(_, _ int, v [3]float64) [3]float64 { // in the colour of the ground
			for c := range v {
				v[c] *= textures[texture].tint[c] / textures[from].tint[c]
			}
			return v
		})
		draw.Draw(img, image.Rect(0, 0, side, side).Add(image.Pt(int(x0)-side/2, int(y0)-side/2)), other, image.Point{}, draw.Src)
	case "smudge":
		soft, half := blurred(img, 2.5), int(between(5, 8))
		at := image.Rect(int(x0)-half, int(y0)-half, int(x0)+half, int(y0)+half)
		draw.Draw(img, at, soft, at.Min, draw.Src)
	case "blur":
		img = blurred(img, 1.8)
	case "colour":
		each(img, func(_, _ int, v [3]float64) [3]float64 { return [3]float64{.85 * v[0], v[1], 1.2 * v[2]} })
	case "noise":
		each(img, func(_, _ int, v [3]float64) [3]float64 {
			for c := range v {
				v[c] += 20 * s.rng.NormFloat64()
			}
			return v
		})
	}
	return img
}

// draw writes the images of all textures, unless they are there.
func (s *surfaces) draw(dir string) error {
	save := func(img image.Image, name ...string) error {
		file := filepath.Join(append([]string{dir}, name...)...)
		if err := os.MkdirAll(filepath.Dir(file), 0o777); err != nil {
			return err
		}
		f, err := os.Create(file)
		if err == nil {
			err = png.Encode(f, img)
		}
		if closeErr := f.Close(); err == nil {
			err = closeErr
		}
		return err
	}
	for t, texture := range textures {
		for _, part := range []struct {
			name string
			n    int
		}{{"good", goodImages}, {"fresh", freshImages}} {
			for i := range part.n {
				if err := save(s.crop(t, cropSide), texture.name, part.name, fmt.Sprintf("%03d.png", i)); err != nil {
					return err
				}
			}
		}
		for _, kind := range slices.Concat(localDefects, wholeChanges) {
			for i := range badImages {
				if err := save(s.defect(t, kind), texture.name, "bad", kind, fmt.Sprintf("%02d.png", i)); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// variants are what a detector knows of an image besides the embedding.
var variants = []struct {
	name    string
	without func(l features.Layer) bool // layers that are left out
}{
	{"embedding", func(features.Layer) bool { return true }},
	{"layers", features.Layer.OfPatches},
	{"patches", func(l features.Layer) bool { return !l.OfPatches() }},
	{"layers, patches", func(features.Layer) bool { return false }},
}

// runDefects draws the images, and prints what detectors of good parts alone catch.
func (e *experiment) runDefects(ctx context.Context, w io.Writer, models []string, seeds string, epochs int, from string) error {
	if len(models) == 0 || from == "" {
		return command.Usagef("defects needs --model and --textures, the folder of brick.png, grass.png and gravel.png (skimage/data of the Python package scikit-image 0.26)")
	}
	if err := e.readTraining(seeds, epochs); err != nil {
		return err
	}
	s := &surfaces{rng: rand.New(rand.NewPCG(37, 4))}
	for _, texture := range textures {
		f, err := os.Open(filepath.Join(from, texture.name+".png"))
		if err != nil {
			return err
		}
		img, err := png.Decode(f)
		if f.Close(); err != nil {
			return err
		}
		s.greys = append(s.greys, img)
	}
	root := filepath.Join(e.out, defectsKey)
	if _, err := os.Stat(filepath.Join(root, "brick", "bad", "noise")); err != nil {
		if err := s.draw(root); err != nil {
			return err
		}
	}
	fmt.Fprintf(w, "| model | reads | local defects caught (%s) | whole-image changes caught (%s) | false alarms |\n|---|---|---|---|---|\n", strings.Join(localDefects, ", "), strings.Join(wholeChanges, ", "))
	for _, model := range models {
		for v := range variants {
			caught, fresh := map[string]float64{}, 0.
			runs := 0.
			for _, texture := range textures {
				for _, seed := range e.train[false].Seeds {
					flagged, err := e.judgeDefects(ctx, filepath.Join(root, texture.name), model, v, seed)
					if err != nil {
						return fmt.Errorf("%s, %s: %w", model, texture.name, err)
					}
					runs++
					fresh += flagged["fresh"]
					for kind, share := range flagged {
						caught[kind] += share
					}
				}
			}
			cell := func(kinds []string) string {
				mean, all := 0., []string{}
				for _, kind := range kinds {
					mean += 100 * caught[kind] / runs / float64(len(kinds))
					all = append(all, fmt.Sprintf("%.0f", 100*caught[kind]/runs))
				}
				return fmt.Sprintf("%.0f (%s)", mean, strings.Join(all, ", "))
			}
			fmt.Fprintf(w, "| %s | %s | %s | %s | %.1f |\n", filepath.Base(model), variants[v].name, cell(localDefects), cell(wholeChanges), 100*fresh/runs)
		}
	}
	if err := e.timeDefects(ctx, w, models, filepath.Join(root, textures[0].name, "fresh"), filepath.Join(root, textures[0].name, "good")); err != nil {
		return err
	}
	return e.pictureDefects(ctx, root, models[0])
}

// extractDefects extracts a folder, with all that there is.
func (e *experiment) extractDefects(ctx context.Context, images, model, class string, patches ...string) (string, error) {
	o := e.extraction
	o.Model, o.Images, o.Class = model, images, class
	o.Out = images + "-" + filepath.Base(model) + ".features"
	o.Layers, o.PatchNodes = []string{"auto"}, patches
	_, err := pipeline.Extract(ctx, o)
	return o.Out, err
}

// judgeDefects returns the share of the images of each kind that a detector flags.
func (e *experiment) judgeDefects(ctx context.Context, dir, model string, variant int, seed uint64) (flagged map[string]float64, err error) {
	good, err := e.extractDefects(ctx, filepath.Join(dir, "good"), model, "good", "auto")
	if err != nil {
		return nil, err
	}
	o := e.train[false]
	o.Features, o.Seeds, o.TargetTPR, o.Calibration.Fraction = []string{good}, []uint64{seed}, 1-fewFlagged, 0.3
	set, err := features.Open(ctx, good)
	if err != nil {
		return nil, err
	}
	for i, l := range set.Layers {
		if variants[variant].without(l) {
			o.WithoutParts = append(o.WithoutParts, detector.LayerPart(set.Layers, i))
		}
	}
	if len(o.WithoutParts) == len(set.Layers) { // as of today
		var x []float32
		for i := range set.N {
			x = append(x, set.Row(i)...)
		}
		if o.Rows, err = features.InMemory(x, set.D, set.Labels(), set.Classes); err != nil {
			return nil, err
		}
	}
	if err := set.Close(); err != nil {
		return nil, err
	}
	d, _, err := pipeline.Train(ctx, o)
	if err != nil {
		return nil, err
	}
	flagged = map[string]float64{}
	for _, part := range []string{"fresh", "bad"} {
		dir, err := e.extractDefects(ctx, filepath.Join(dir, part), model, "", good)
		if err != nil {
			return nil, err
		}
		s, err := features.Open(ctx, dir)
		if err != nil {
			return nil, err
		}
		defer s.Close()
		if err := s.With(d.Source.Layers); err != nil {
			return nil, err
		}
		images, err := s.Images()
		if err != nil {
			return nil, err
		}
		n := map[string]float64{}
		for i, img := range images {
			kind, _, inFolder := strings.Cut(img.Path, "/")
			if !inFolder {
				kind = part
			}
			verdicts, err := d.Verdicts(ctx, s.Row(i))
			if err != nil {
				return nil, err
			}
			if n[kind]++; verdicts[0].OOD {
				flagged[kind]++
			}
		}
		for kind := range n {
			flagged[kind] /= n[kind]
		}
	}
	return flagged, nil
}

// timeDefects prints how fast images are extracted, by turns: of the processor time that two
// folders take, the difference, so that the start does not count.
func (e *experiment) timeDefects(ctx context.Context, w io.Writer, models []string, few, many string) error {
	fmt.Fprint(w, "\n| model | images a second of processor time, embedding | with layers | with patches |\n|---|---|---|---|\n")
	for _, model := range models {
		var each [3][]float64
		for range 3 {
			for i := range each {
				var took [2]time.Duration
				for k, images := range []string{few, many} {
					o := e.extraction
					o.Model, o.Images, o.Out, o.Force = model, images, filepath.Join(e.out, "timed.features"), true
					o.Workers, o.Batch = 1, 1 // so that nothing is tried out
					if i == 1 {
						o.Layers = []string{"auto"}
					} else if i == 2 {
						o.PatchNodes = []string{"auto"}
					}
					if err := os.RemoveAll(o.Out); err != nil {
						return err
					}
					start := processTime()
					if _, err := pipeline.Extract(ctx, o); err != nil {
						return err
					}
					took[k] = processTime() - start
				}
				each[i] = append(each[i], (took[1]-took[0]).Seconds()/(goodImages-freshImages))
			}
		}
		for i := range each {
			slices.Sort(each[i])
		}
		plain := each[0][1]
		fmt.Fprintf(w, "| %s | %.1f | %.2f | %.2f |\n", filepath.Base(model), 1/plain, plain/each[1][1], plain/each[2][1])
	}
	return nil
}

// processTime returns the processor time of all threads of this program.
func processTime() time.Duration {
	var r syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &r) // it cannot fail
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// pictureDefects draws of each kind the first image that a detector flags, if there is one, and
// below it where it sees a defect.
func (e *experiment) pictureDefects(ctx context.Context, root, model string) error {
	kinds := slices.Concat([]string{"fresh"}, localDefects, wholeChanges)
	sheet := image.NewNRGBA(image.Rect(0, 0, len(kinds)*cropSide, 2*cropSide))
	dir := filepath.Join(root, textures[2].name)
	o := e.train[false]
	o.Features, o.Seeds, o.TargetTPR, o.Calibration.Fraction = []string{filepath.Join(dir, "good-"+filepath.Base(model)+".features")}, []uint64{0}, 1-fewFlagged, 0.3
	d, _, err := pipeline.Train(ctx, o)
	if err != nil {
		return err
	}
	judge, err := pipeline.NewJudge(ctx, d, model, extractor.Options{})
	if err != nil {
		return err
	}
	defer judge.Close()
	explainer, err := pipeline.NewExplainer(ctx, d, pipeline.ExplainOptions{Nearest: -1})
	if err != nil {
		return err
	}
	defer explainer.Close()
	for i, kind := range kinds {
		files := []string{filepath.Join(dir, kind, "003.png")}
		if kind != "fresh" {
			if files, err = filepath.Glob(filepath.Join(dir, "bad", kind, "*.png")); err != nil {
				return err
			}
		}
		var inputs []pipeline.Picture
		for _, file := range files {
			inputs = append(inputs, pipeline.File(file))
		}
		answers, err := judge.Explain(ctx, explainer, true, inputs...)
		if err != nil {
			return err
		}
		at := max(0, slices.IndexFunc(answers, func(a pipeline.Answer) bool { return a.Explanation != nil && a.Explanation.Where != nil }))
		f, err := os.Open(files[at])
		if err != nil {
			return err
		}
		img, err := png.Decode(f)
		if f.Close(); err != nil {
			return err
		}
		for row := range 2 {
			draw.Draw(sheet, img.Bounds().Add(image.Pt(i*cropSide, row*cropSide)), img, image.Point{}, draw.Src)
		}
		m := answers[at].Explanation.Where
		if m == nil {
			continue
		}
		most := slices.Max(m.Values)
		for y := range cropSide {
			for x := range cropSide {
				u := (float64(x)/cropSide - m.Area[0]) / (m.Area[2] - m.Area[0])
				v := (float64(y)/cropSide - m.Area[1]) / (m.Area[3] - m.Area[1])
				if u < 0 || v < 0 || u >= 1 || v >= 1 {
					continue
				}
				if value := m.Values[int(v*float64(m.Height))*m.Width+int(u*float64(m.Width))]; value > 0 {
					over := image.NewUniform(color.NRGBA{255, 80, 0, uint8(value / most * 200)})
					draw.Draw(sheet, image.Rect(0, 0, 1, 1).Add(image.Pt(i*cropSide+x, cropSide+y)), over, image.Point{}, draw.Over)
				}
			}
		}
	}
	f, err := os.Create(filepath.Join(e.out, "defects.jpg"))
	if err != nil {
		return err
	}
	if err := jpeg.Encode(f, sheet, &jpeg.Options{Quality: 80}); err != nil {
		return err
	}
	return f.Close()
}

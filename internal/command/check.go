package command

import (
	"context"
	"errors"
	"fmt"
	"image/png"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/mlrbfn/mlrbfn/extractor"
	"github.com/mlrbfn/mlrbfn/extractor/preprocess"
	"github.com/mlrbfn/mlrbfn/images"
	"github.com/mlrbfn/mlrbfn/internal/command/check"
	"github.com/mlrbfn/mlrbfn/internal/disk"
)

// checkFlags are the flags for --check.
type checkFlags struct {
	on      bool
	against string
	picture string
	images  int
}

func addCheckFlags(c *command) *checkFlags {
	var to checkFlags
	c.BoolVar(&to.on, "check", false, "only show what the model does to some images, and whether that is right")
	c.StringVar(&to.against, "against", "", "with --check, compare with another `MODEL`, such as the one that this is quantised from")
	c.StringVar(&to.picture, "picture", "", "with --check, PNG `FILE` for a picture of what the model sees")
	c.IntVar(&to.images, "check-images", check.DefaultImages, "with --check, `number` of images to look at")
	c.programOnly("check", "against", "picture", "check-images")
	return &to
}

// errCheck ends a check that found something.
var errCheck = errors.New("the check found something that is probably wrong")

// runCheck says what an extraction would do and whether that is right.
func (e *extracting) runCheck(ctx context.Context, s Streams) (err error) {
	opts, c := e.opts, e.checking
	if c.picture != "" {
		if err := prepareOutput(c.picture); err != nil {
			return err
		}
	}
	m, err := extractor.OpenModel(ctx, opts.Model, opts.Options)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	o := check.Options{Decode: preprocess.DecodeOptions{MaxPixels: opts.MaxPixels, Reading: opts.Reading}}
	if opts.Images != "" {
		listing, err := images.List(ctx, images.ListOptions{Root: opts.Images, ListFile: opts.List})
		if err != nil {
			return err
		}
		o.Images = check.Sample(listing.Items, c.images)
	}
	if c.against != "" {
		if o.Against, err = extractor.OpenModel(ctx, c.against, opts.Options); err != nil {
			return fmt.Errorf("--against: %w", err)
		}
		defer func() { err = errors.Join(err, o.Against.Close()) }()
	}
	r, err := check.Run(ctx, m, o)
	if err != nil {
		return err
	}
	for i := range r.Failed {
		r.Failed[i].Error = e.adviseText(r.Failed[i].Error)
	}
	for i, text := range r.Warnings {
		r.Warnings[i] = e.adviseText(text)
	}
	drawn := ""
	if sheet, err := r.Picture(); err == nil && c.picture != "" {
		drawn = c.picture
		if err := disk.Write(drawn, func(w io.Writer) error { return png.Encode(w, sheet) }); err != nil {
			return err
		}
	}
	quantised, products := m.Quantised(), ""
	if quantised {
		products = extractor.Products()
	}
	err = e.print(s, struct {
		Model      string                 `json:"model"`
		SHA256     string                 `json:"model_sha256"`
		Inputs     []extractor.TensorInfo `json:"inputs"`
		Outputs    []extractor.TensorInfo `json:"outputs"`
		Output     string                 `json:"output"`
		Why        string                 `json:"why"`
		Pool       string                 `json:"pool"`
		D          int                    `json:"d"`
		Logits     int                    `json:"logits"`
		Preprocess any                    `json:"preprocess"`
		Picture    string                 `json:"picture"`
		Quantised  bool                   `json:"quantised"`
		Products   string                 `json:"int8_products,omitempty"`
		*check.Report
	}{m.File, m.SHA256, m.Inputs, m.Outputs, m.Output(), m.Why(), m.Pool(), m.Dim(), m.LogitsDim(), m.Spec, drawn, quantised, products, r}, checkText(m, r, drawn, opts.ApplyEXIF))
	if err == nil && len(r.Warnings) > 0 {
		err = errCheck
	}
	return err
}

// checkText says what was found to a person.
func checkText(m *extractor.Model, r *check.Report, drawn string, exif bool) string {
	text := new(strings.Builder)
	w := tabwriter.NewWriter(text, 0, 0, 2, ' ', 0)
	line := func(format string, args ...any) { fmt.Fprintf(w, format+"\n", args...) }
	line("model\t%s, sha256 %.12s…, onnxruntime %s", m.File, m.SHA256, extractor.RuntimeVersion())
	for i, in := range m.Inputs {
		line("%s\t%s", first(i, "inputs"), in)
	}
	for i, out := range m.Outputs {
		line("%s\t%s", first(i, "outputs"), out)
	}
	line("features\t%d, from %s: %s", m.Dim(), m.Output(), m.Why())
	switch m.Pool() {
	case "cls":
		line("\tthe first token of each image, which is the class token")
	case "mean":
		line("\tthe mean over dimensions %v of %s", m.Axes(), m.Embedding())
	}
	if n := m.LogitsDim(); n > 0 {
		line("logits\tof %s, written beside the features", count(n, "class"))
	}
	line("images are\t%s", m.Spec)
	if m.Quantised() {
		line("warning\t%s", quantisedText(extractor.Products()))
	}
	if len(r.Images)+len(r.Failed) == 0 {
		line("\nno images were looked at; --images DIR shows what the model makes of some")
		w.Flush()
		return text.String()
	}
	if len(r.Images) > 0 {
		printImages(line, m, r, drawn)
	}
	for i, f := range r.Failed {
		line("%s\t%s\t%s", first(i, "unreadable"), Printable(f.Path), f.Error)
	}
	w.Flush()
	turned := r.Oriented
	if !exif {
		turned = 0 // the warning says it
	}
	if odd := oddImages(turned, r.Enlarged, exif); odd != "" {
		fmt.Fprintf(text, "\nof %s, %s\n", count(len(r.Images), "image"), odd)
	}
	switch {
	case len(r.Warnings) > 0:
	case 2*r.Enlarged > len(r.Images):
		fmt.Fprintln(text, "\nthe model is used as its configuration says, but most images have less detail than it learned from: expect less of it, and take larger images if there are any")
	default:
		fmt.Fprintln(text, "\nnothing looks wrong")
	}
	for _, warning := range r.Warnings {
		fmt.Fprintf(text, "\nwarning: %s\n", warning)
	}
	return text.String()
}

// printImages prints what the model makes of images.
func printImages(line func(string, ...any), m *extractor.Model, r *check.Report, drawn string) {
	if drawn != "" {
		line("the model sees\t%s, the first of the %s below", drawn, count(len(r.Images), "image"))
	}
	for i, c := range r.Inputs {
		line("%s\t%s: %.3f … %.3f, mean %.3f, standard deviation %.3f", first(i, "its values"), [3]string{"red", "green", "blue"}[i], c.Min, c.Max, c.Mean, c.Std)
	}
	if len(r.Images) > 1 {
		line("cosines\tbetween features of images: %.3f … %.3f, mean %.3f", r.Cosine.Min, r.Cosine.Max, r.Cosine.Mean)
		line("constant\t%d of %d features", r.Constant, m.Dim())
	}
	if len(r.Normalisations) > 0 {
		line("\nOf an image and its mirror image: the cosine, and by how much it exceeds that of the image with any other (margin).")
		line("The configuration is right if no other normalisation has a clearly larger cosine; there is a warning below if one has.")
		line("normalisation\tmirror\tmargin")
		for _, n := range r.Normalisations {
			line("%s\t%.3f\t%.3f", n.Name, n.Mirror, n.Margin)
		}
	}
	if a := r.Against; a != nil {
		line("\nagainst\t%s", a.Model)
		line("cosines\t%.4f … %.4f, mean %.4f, of the features of an image", a.Cosine.Min, a.Cosine.Max, a.Cosine.Mean)
		line("same nearest\timage for %.0f%% of the images", 100*a.SameNearest)
	}
	line("\nimage\tnorm\tnearest\tcosine")
	for _, i := range r.Images {
		line("%s\t%.4g\t%s\t%.3f", Printable(i.Path), i.Norm, Printable(i.Nearest), i.Cosine)
	}
}

// first returns the name of a list at its first entry.
func first(i int, name string) string {
	if i > 0 {
		return ""
	}
	return name
}

// validate refuses flags that mean nothing without --check, or with pixels.
func (c *checkFlags) validate(changed func(string) bool, pixels bool) error {
	switch {
	case c.on && pixels:
		return Usagef("--check is for ONNX models, not for pixels")
	case c.on && c.images < 1:
		return Usagef("--check-images %d: it must be positive", c.images)
	case c.on && c.against != "" && !changed("images"):
		return Usagef("--against needs --images to compare the models on")
	case !c.on && (changed("against") || changed("picture") || changed("check-images")):
		return Usagef("--against, --picture and --check-images go with --check")
	}
	return nil
}

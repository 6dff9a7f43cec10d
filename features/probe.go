package features

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"

	"github.com/mlrbfn/mlrbfn/internal/npy"
	"github.com/mlrbfn/mlrbfn/internal/options"
)

// Probe is what a model answered, where a set was made, on a few images that package
// extractor draws. A model that is opened for the set again answers on the same images:
// other features there mean other features everywhere.
type Probe struct {
	Version  int       // of the images
	Images   int       // their number
	Features []float32 // [Images, D]
}

// ErrDrifted says that a model gives other features than before.
var ErrDrifted = errors.New("the model gives other features than before")

// Bounds of [Probe.Distance] for sets, which have no score to measure by. Float32 models
// differ by 1e-5 between processors, half floats by up to 1e-2, and 8-bit models with and
// without VNNI by more than 0.1.
const (
	SmallDistance = 1e-3 // up to here: rounding
	GreatDistance = 0.05 // above: rows made here and there must not be mixed
)

// Comparable tells whether both are of the same images, with as many features.
func (p *Probe) Comparable(o *Probe) bool {
	return p != nil && o != nil && p.Version == o.Version && p.Images == o.Images && len(p.Features) == len(o.Features)
}

// Distance returns how far an image's features differ between comparable probes, at
// most, as a share of the distance that the features of two images have on average (root
// mean square). It is +Inf if an image has no features in o.
func (p *Probe) Distance(o *Probe) float64 {
	d := len(p.Features) / p.Images
	row := func(p *Probe, i int) []float32 { return p.Features[i*d : (i+1)*d] }
	var most, apart float64
	for i := range p.Images {
		most = max(most, squared(row(p, i), row(o, i)))
		for j := range i {
			apart += squared(row(p, i), row(p, j))
		}
	}
	switch pairs := float64(p.Images*(p.Images-1)) / 2; {
	case most == 0:
		return 0
	case apart == 0 || math.IsInf(most, 1):
		return math.Inf(1)
	default:
		return math.Sqrt(most / (apart / pairs))
	}
}

func squared(a, b []float32) (sum float64) {
	for i, v := range a {
		d := float64(v) - float64(b[i])
		sum += d * d
	}
	if math.IsNaN(sum) {
		return math.Inf(1)
	}
	return sum
}

// CheckProbes compares the probes of sets whose rows are to be used together with that of
// the first that has one. It calls drifted, where set, if features differ by more than
// rounding, and returns an error that wraps ErrDrifted if they must not be mixed, unless
// allow.
func CheckProbes(sets []*Set, allow bool, drifted func(text string)) error {
	o := Options{AllowDriftedFeatures: allow, Drifted: drifted}
	var first *Set
	for _, s := range sets {
		if first == nil && s.Probe != nil {
			first = s
		}
		if first == nil || s == first {
			continue
		}
		if err := o.check(first.Probe, s.Probe, first.Dir+" and "+s.Dir); err != nil {
			return err
		}
	}
	return nil
}

// check compares the probe of rows that there are with one of rows that are to be mixed
// with them; what says whose they are.
func (o *Options) check(there, here *Probe, what string) error {
	if !there.Comparable(here) {
		return nil
	}
	distance := there.Distance(here)
	text := fmt.Sprintf("%s: the features of one image differ by up to %.2g of the distance between two images", what, distance)
	switch {
	case distance <= SmallDistance:
		return nil
	case distance > GreatDistance && !o.AllowDriftedFeatures:
		return options.Errorf("AllowDriftedFeatures", "%w: %s. Processor, device, onnxruntime or the model's precision is another; extract all images in one place. The option mixes them all the same", ErrDrifted, text)
	case o.Drifted != nil:
		o.Drifted(text)
	}
	return nil
}

// probeRecord is a probe in JSON. Features are the bytes of float32 numbers, little
// endian, in base64: numpy.frombuffer(base64.b64decode(text), "<f4").
type probeRecord struct {
	Version  int    `json:"version"`
	Images   int    `json:"images"`
	Features string `json:"features"`
}

// MarshalJSON writes the probe as files have it.
func (p *Probe) MarshalJSON() ([]byte, error) {
	data, err := binary.Append(nil, binary.LittleEndian, p.Features)
	if err != nil {
		return nil, err
	}
	return json.Marshal(probeRecord{p.Version, p.Images, base64.StdEncoding.EncodeToString(data)})
}

// UnmarshalJSON is the inverse of MarshalJSON.
func (p *Probe) UnmarshalJSON(text []byte) error {
	var record probeRecord
	if err := json.Unmarshal(text, &record); err != nil {
		return fmt.Errorf("probe: %w", err)
	}
	data, err := base64.StdEncoding.DecodeString(record.Features)
	if err != nil {
		return fmt.Errorf("probe: %w", err)
	}
	*p = Probe{Version: record.Version, Images: record.Images, Features: make([]float32, len(data)/4)}
	if _, err := binary.Decode(data, binary.LittleEndian, p.Features); err != nil || len(data)%4 != 0 || p.Images < 1 {
		return fmt.Errorf("probe: %d bytes of features of %d images", len(data), p.Images)
	}
	return nil
}

// Validate checks a probe that was read from a file, of d features for each image.
func (p *Probe) Validate(d int) error {
	if p.Images < 1 || len(p.Features)%p.Images != 0 || len(p.Features)/p.Images != d {
		return fmt.Errorf("its probe has %d features of %d images, and a row has %d", len(p.Features), p.Images, d)
	}
	return npy.CheckValues(p.Features)
}

// probeOf returns the probe for the set that rows of the old one or of the journal make
// up: that of the oldest rows, nil where it is not known what made them.
func (w *Writer) probeOf(fromOld, fromJournal bool) *Probe {
	here := func(machines []Machine) *Probe {
		if w.header.Machine != (Machine{}) && len(machines) == 1 && machines[0] == w.header.Machine {
			return w.header.Probe // of before there were any
		}
		return nil
	}
	if p := w.header.Probe; p != nil && npy.CheckValues(p.Features) != nil {
		w.header.Probe = nil // nothing to compare with
	}
	switch {
	case fromOld && w.old.Probe != nil:
		return w.old.Probe
	case fromOld:
		return here(w.old.Machines)
	case !fromJournal:
		return w.header.Probe
	case w.probe != nil && npy.CheckValues(w.probe.Features) == nil:
		return w.probe
	default:
		return here(w.machines)
	}
}

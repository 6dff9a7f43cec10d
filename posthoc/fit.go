package posthoc

import (
	"context"
	"fmt"
	"maps"
	"slices"
)

// Input is what there is to fit scores on. What a score does not need may be
// nil.
type Input struct {
	Train   *Data   // training rows
	Val     *Data   // in-distribution rows that nothing was trained on; nil means Train
	Head    *Linear // the last layer, on the same features
	Network Network // ODIN's, from the same features; nil means Head
	Memory  int64   // bytes that KNN, NNGuide and Relation take to score; 0 means 1 GiB
}

// Names lists the names that Fit knows, in alphabetical order.
func Names() []string { return slices.Sorted(maps.Keys(fits)) }

// Headless tells whether the score called name reads features alone: no
// classifier has a say in it.
func Headless(name string) bool {
	return slices.Contains([]string{"knn", "mds", "mds++", "rmds", "rmds++"}, name)
}

// Fit fits the score called name with OpenOOD's defaults. The error wraps
// ErrMissing if the input lacks what the score needs.
func Fit(ctx context.Context, name string, in Input) (Score, error) {
	fit, known := fits[name]
	if !known {
		return nil, fmt.Errorf("score %q: it is one of %q", name, Names())
	}
	if in.Val == nil {
		in.Val = in.Train
	}
	if in.Network == nil && in.Head != nil {
		in.Network = in.Head
	}
	s, err := fit(ctx, in)
	if err != nil {
		return nil, fmt.Errorf("score %s: %w", name, err)
	}
	return s, nil
}

// Detach copies into memory the training rows that a score goes on reading when
// it scores, so that what they were read from may be closed.
func Detach(s Score) {
	switch s := s.(type) {
	case *KNN:
		s.Bank = s.Bank.inMemory(false)
	case *NNGuide:
		s.Bank = s.Bank.inMemory(false)
	case *Relation:
		s.Bank = s.Bank.inMemory(true)
	}
}

// inMemory returns a copy of the features and, if they are asked for, logits.
func (data *Data) inMemory(logits bool) *Data {
	own := NewData(slices.Clone(data.Features(0, data.N)), data.D, nil, data.Classes)
	if logits {
		own.Logits = Matrix(data.Logits(0, data.N), data.Classes)
	}
	return own
}

type fitter func(ctx context.Context, in Input) (Score, error)

var fits = map[string]fitter{
	"msp":    always(MaxSoftmax{}),
	"mls":    always(MaxLogit{}),
	"energy": always(Energy{}),
	"gen":    always(GEN{}),

	"temperature": func(ctx context.Context, in Input) (Score, error) { return FitTemperature(ctx, in.Val) },
	"klm":         func(ctx context.Context, in Input) (Score, error) { return FitKLM(ctx, in.Val) },
	"odin": func(_ context.Context, in Input) (Score, error) {
		if in.Network == nil {
			return nil, fmt.Errorf("a network to differentiate: %w", ErrMissing)
		}
		return ODIN{Network: in.Network}, nil
	},

	"knn": func(_ context.Context, in Input) (Score, error) {
		s, err := FitKNN(in.Train, 0)
		if err == nil {
			s.Memory = in.Memory
		}
		return s, err
	},
	"mds":      func(ctx context.Context, in Input) (Score, error) { return FitMDS(ctx, in.Train, false) },
	"mds++":    func(ctx context.Context, in Input) (Score, error) { return FitMDS(ctx, in.Train, true) },
	"rmds":     func(ctx context.Context, in Input) (Score, error) { return FitRMDS(ctx, in.Train, false) },
	"rmds++":   func(ctx context.Context, in Input) (Score, error) { return FitRMDS(ctx, in.Train, true) },
	"vim":      func(ctx context.Context, in Input) (Score, error) { return FitViM(ctx, in.Train, in.Head, 0) },
	"residual": func(ctx context.Context, in Input) (Score, error) { return FitResidual(ctx, in.Train, in.Head, 0) },

	"react": func(ctx context.Context, in Input) (Score, error) { return FitReAct(ctx, in.Val, in.Head, 0) },
	"vra":   func(ctx context.Context, in Input) (Score, error) { return FitVRA(ctx, in.Val, in.Head, 0, 0) },
	"dice":  func(ctx context.Context, in Input) (Score, error) { return FitDICE(ctx, in.Train, in.Head, 0) },
	"ash-b": onHead(func(h *Linear) Score { return &ASH{Head: h, Shape: ASHB} }),
	"ash-p": onHead(func(h *Linear) Score { return &ASH{Head: h, Shape: ASHP} }),
	"ash-s": onHead(func(h *Linear) Score { return &ASH{Head: h, Shape: ASHS} }),
	"scale": onHead(func(h *Linear) Score { return &ASH{Head: h, Shape: Scale} }),

	"gradnorm": onHead(func(h *Linear) Score { return GradNorm{h} }),

	"she-ip":  func(ctx context.Context, in Input) (Score, error) { return FitSHE(ctx, in.Train, InnerProduct) },
	"she-e":   func(ctx context.Context, in Input) (Score, error) { return FitSHE(ctx, in.Train, Euclidean) },
	"she-cos": func(ctx context.Context, in Input) (Score, error) { return FitSHE(ctx, in.Train, Cosine) },
	"nnguide": func(ctx context.Context, in Input) (Score, error) {
		s, err := FitNNGuide(ctx, in.Train, 0, 0)
		if err == nil {
			s.Memory = in.Memory
		}
		return s, err
	},
	"relation": func(_ context.Context, in Input) (Score, error) {
		s, err := FitRelation(in.Train)
		if err == nil {
			s.Memory = in.Memory
		}
		return s, err
	},
	"fdbd": func(ctx context.Context, in Input) (Score, error) { return FitFDBD(ctx, in.Train, in.Head) },
	"nci":  func(ctx context.Context, in Input) (Score, error) { return FitNCI(ctx, in.Train, in.Head, 0) },
}

func always(s Score) fitter {
	return func(context.Context, Input) (Score, error) { return s, nil }
}

func onHead(score func(*Linear) Score) fitter {
	return func(_ context.Context, in Input) (Score, error) {
		if err := in.Head.need(); err != nil {
			return nil, err
		}
		return score(in.Head), nil
	}
}

package evaluation

import (
	"fmt"

	"github.com/mlrbfn/mlrbfn/internal/options"
	"github.com/mlrbfn/mlrbfn/pipeline/training"
	"github.com/mlrbfn/mlrbfn/posthoc"
)

// leaveOut takes those methods off the list that cannot be fitted for want of
// memory, and tells Warn; a method that was named is an error. It is called before
// anything is trained.
func (e *evaluation) leaveOut(named bool) error {
	var kept []string
	for _, method := range e.opts.Methods {
		switch err := e.checkMemory(method); {
		case err == nil:
			kept = append(kept, method)
		case named:
			return err
		default:
			e.warn(fmt.Sprintf("%s is left out: %s", method, options.Text(err)))
		}
	}
	e.opts.Methods = kept
	return nil
}

// checkMemory reports that a method cannot be fitted on the training features.
// Of scores that read what the last layer of a network reads, it is only known when
// they are fitted.
func (e *evaluation) checkMemory(method string) error {
	if d := e.opts.Detector; d != nil && method == d.ScoreName() || e.opts.Head == OwnHead {
		return nil
	}
	if e.opts.Head == "" && e.opts.Softmax != nil && e.opts.Softmax.Layers > 1 && !posthoc.Headless(method) {
		return nil
	}
	return training.CheckMemory(method, e.train.D, len(e.train.Classes), e.opts.Memory)
}

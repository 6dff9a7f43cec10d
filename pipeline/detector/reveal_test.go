package detector

// What the tests of explanations, which train detectors and are therefore in a package
// of their own, see of an Explainer.

func (e *Explainer) Detector() *Detector   { return e.detector }
func (e *Explainer) Reference() *Reference { return e.ref }

var SpaceOf = spaceOf

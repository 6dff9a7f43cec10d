package detector

import (
	"context"
	"path/filepath"

	"github.com/mlrbfn/mlrbfn/extractor"
)

// BundleFile is the name of the detector in a bundle's folder.
const BundleFile = "detector.safetensors"

// Bundle copies the model that the detector's features come from, with its
// configurations, into the folder model beside the detector file, so that both
// work wherever the folder is copied to. A detector of pixels has no model.
func (d *Detector) Bundle(ctx context.Context, file string) error {
	if d.Source.Model == extractor.PixelsName {
		return nil
	}
	folder := filepath.Dir(file)
	r := extractor.ModelReference{SHA256: d.Source.SHA256, Hint: d.Source.Model, Beside: folder}
	return r.Copy(ctx, filepath.Join(folder, "model"))
}

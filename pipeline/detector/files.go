package detector

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/mlrbfn/mlrbfn/head"
	"github.com/mlrbfn/mlrbfn/internal/safetensors"
)

// This file has what reading and writing the pipeline's files has in common.

// Pathless takes the file's name off an error of the file system.
func Pathless(err error) error {
	if pathErr := (*fs.PathError)(nil); errors.As(err, &pathErr) {
		return pathErr.Err
	}
	return err
}

// IsFormatError tells whether a safetensors file was read that is none, or that
// is cut short or altered.
func IsFormatError(err error) bool {
	return errors.Is(err, safetensors.ErrFormat) || errors.Is(err, safetensors.ErrChecksum) || errors.Is(err, safetensors.ErrNoChecksum)
}

// MkdirFor makes the folder that a file of a report is written to.
func MkdirFor(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return fmt.Errorf("report folder: %w", err)
	}
	return nil
}

// EpochRecord is how detectors and checkpoints hold a [head.Epoch]. Its names are those
// of the formats.
type EpochRecord struct {
	Epoch       int     `json:"epoch"`
	Steps       int     `json:"steps"`
	LR          float64 `json:"lr"`
	TrainLoss   float64 `json:"train_loss"`
	ValLoss     float64 `json:"val_loss"`
	ValAccuracy float64 `json:"val_accuracy"`
}

// EpochRecords returns epochs as files hold them; nil stays nil.
func EpochRecords(epochs []head.Epoch) []EpochRecord {
	if epochs == nil {
		return nil
	}
	records := make([]EpochRecord, len(epochs))
	for i, e := range epochs {
		records[i] = EpochRecord{e.Epoch, e.Steps, e.LR, e.TrainLoss, e.ValLoss, e.ValAccuracy}
	}
	return records
}

// HeadEpochs is the inverse of Epochs.
func HeadEpochs(records []EpochRecord) []head.Epoch {
	if records == nil {
		return nil
	}
	epochs := make([]head.Epoch, len(records))
	for i, r := range records {
		epochs[i] = head.Epoch{Epoch: r.Epoch, Steps: r.Steps, LR: r.LR, TrainLoss: r.TrainLoss, ValLoss: r.ValLoss, ValAccuracy: r.ValAccuracy}
	}
	return epochs
}

//go:build !unix

package extractor

// saveSignals has nothing to save where there are no handlers of signals.
func saveSignals() (restore func()) { return func() {} }

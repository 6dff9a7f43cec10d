//go:build !windows

package disk

func patiently(_ string, do func() error) error { return do() }

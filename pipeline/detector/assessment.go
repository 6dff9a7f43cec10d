package detector

// Assessment says how well images of a new class are told from the others: each
// class, or each group of classes, was left out of the fitting in turn, and its
// images were scored as out-of-distribution images are. Its JSON names are those of
// detector files and of the command's results.
type Assessment struct {
	AUROC float64 `json:"auroc"` // mean over the classes
	// Caught is the share of the images of classes that were left out that a
	// threshold with 5% false alarms flags, the mean over the classes.
	Caught  float64                  `json:"caught_at_5_percent"`
	Classes map[string]AssessedClass `json:"classes"`
}

// AssessedClass tells how well one class was noticed as new when it was left out.
type AssessedClass struct {
	AUROC    float64 `json:"auroc"`
	Caught   float64 `json:"caught_at_5_percent"`
	Images   int     `json:"images"`    // that were scored
	TakenFor string  `json:"taken_for"` // the class that most of its images were given
}

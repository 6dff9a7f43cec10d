package detector

// Head is exportHead, for the tests.
var Head = exportHead

package picture

// Figures are what a page shows of each metric: a page has each of them, with its unit.
var Figures = figures

// Text is how a page writes a figure.
var Text = text

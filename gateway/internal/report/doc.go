// Package report puts what the parts of a gateway know into the documents of the admin
// socket. It changes nothing but the documents.
package report

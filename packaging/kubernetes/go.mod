// Tests of the chart, apart from the program's own dependencies.
module github.com/smcgw/smcgw/packaging/kubernetes

go 1.26.3

require (
	github.com/stretchr/testify v1.12.1 // indirect
	helm.sh/helm/v3 v3.22.0 // indirect
	k8s.io/api v0.37.2 // indirect
	k8s.io/apimachinery v0.37.2 // indirect
)

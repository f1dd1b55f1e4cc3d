// Package kubernetes tests the chart and the examples: they are what the API of Kubernetes
// takes, field by field, and what the gateway and programs need.
package kubernetes

import (
	"bytes"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"sigs.k8s.io/yaml"
)

// rendered are the objects of the chart, decoded strictly: an unknown or doubled field
// is an error.
type rendered struct {
	daemons  appsv1.DaemonSet
	config   corev1.ConfigMap
	accounts corev1.ServiceAccount
}

// strictly decodes what the API takes, and no other field.
func strictly(t *testing.T) runtime.Decoder {
	t.Helper()
	scheme := runtime.NewScheme()
	require.NoError(t, corev1.AddToScheme(scheme))
	require.NoError(t, appsv1.AddToScheme(scheme))
	return json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme, scheme, json.SerializerOptions{Yaml: true, Strict: true})
}

func render(t *testing.T, values string) rendered {
	t.Helper()
	c, err := loader.Load("chart")
	require.NoError(t, err)
	require.NoError(t, c.Validate())
	given := map[string]any{}
	require.NoError(t, yaml.Unmarshal([]byte(values), &given))
	all, err := chartutil.ToRenderValues(c, given, chartutil.ReleaseOptions{Name: "gw", Namespace: "smcgw", IsInstall: true}, nil)
	require.NoError(t, err)
	files, err := engine.Engine{Strict: true}.Render(c, all)
	require.NoError(t, err)

	strict := strictly(t)
	var r rendered
	for _, name := range slices.Sorted(maps.Keys(files)) {
		text := []byte(files[name])
		if filepath.Ext(name) != ".yaml" || len(bytes.TrimSpace(text)) == 0 {
			continue
		}
		object, _, err := strict.Decode(text, nil, nil)
		require.NoError(t, err, "%s:\n%s", name, text)
		switch o := object.(type) {
		case *appsv1.DaemonSet:
			r.daemons = *o
		case *corev1.ConfigMap:
			r.config = *o
		case *corev1.ServiceAccount:
			r.accounts = *o
		default:
			require.Fail(t, "not expected", "%s: %T", name, o)
		}
	}
	return r
}

// TestChart: the defaults change nothing on a node, and the pod has what a gateway
// needs and no more.
func TestChart(t *testing.T) {
	r := render(t, "")
	require.Contains(t, r.config.Data["smcgw.yaml"], "mode: observe")
	require.Contains(t, r.config.Data["smcgw.yaml"], "cgroup_path: /host/cgroup")
	// Programs of the node are not in its PID namespace, and would be native at its socket.
	require.Contains(t, r.config.Data["smcgw.yaml"], "in_process:\n  enabled: \"off\"\n")
	require.Equal(t, r.accounts.Name, r.daemons.Spec.Template.Spec.ServiceAccountName)
	pod := r.daemons.Spec.Template
	for name, value := range r.daemons.Spec.Selector.MatchLabels {
		require.Equal(t, value, pod.Labels[name])
	}
	require.True(t, pod.Spec.HostNetwork)
	require.False(t, pod.Spec.HostPID)
	require.Len(t, pod.Spec.Containers, 1)
	c := pod.Spec.Containers[0]
	require.Nil(t, c.SecurityContext.Privileged)
	require.Equal(t, []corev1.Capability{"ALL"}, c.SecurityContext.Capabilities.Drop)
	require.Equal(t, []corev1.Capability{"NET_ADMIN", "BPF", "PERFMON", "SYS_ADMIN"}, c.SecurityContext.Capabilities.Add)
	require.True(t, *c.SecurityContext.ReadOnlyRootFilesystem)
	require.Equal(t, []string{"smcgw", "status", "--brief", "--strict"}, c.ReadinessProbe.Exec.Command)
	require.Equal(t, []string{"smcgw", "drain", "--timeout", "30s"}, c.Lifecycle.PreStop.Exec.Command)
	require.Equal(t, int64(45), *pod.Spec.TerminationGracePeriodSeconds)
	// Each mount has its volume.
	var volumes, mounts []string
	for _, v := range pod.Spec.Volumes {
		volumes = append(volumes, v.Name)
	}
	for _, m := range c.VolumeMounts {
		mounts = append(mounts, m.Name)
	}
	require.ElementsMatch(t, volumes, mounts)
}

// TestChartValues: what can be set arrives where it belongs, and the gateway accepts
// the configuration.
func TestChartValues(t *testing.T) {
	const values = `
image: { repository: registry.example/smcgw, tag: "1.2.3", pullSecrets: [{ name: pull }] }
pskSecret: keys
drainSeconds: 60
nodeSelector: { rdma: "yes" }
affinity: { nodeAffinity: {} }
podAnnotations: { team: net }
priorityClassName: ""
config:
  schema: smcgw/v1
  mode: enforce
  in_process: { enabled: "on", calls: 8 }
  policy:
    - { name: redis, match: { ports: [6379], peers: [10.0.0.0/8] }, action: accelerate }
`
	r := render(t, values)
	pod := r.daemons.Spec.Template
	require.Equal(t, "registry.example/smcgw:1.2.3", pod.Spec.Containers[0].Image)
	require.Equal(t, "net", pod.Annotations["team"])
	require.Equal(t, "yes", pod.Spec.NodeSelector["rdma"])
	require.Equal(t, int64(75), *pod.Spec.TerminationGracePeriodSeconds)
	require.Contains(t, r.config.Data["smcgw.yaml"], "psk_file: /etc/smcgw-psk/psk")
	require.Contains(t, r.config.Data["smcgw.yaml"], "in_process:\n  calls: 8\n  enabled: \"on\"\n")
	require.NotEqual(t, render(t, "").daemons.Spec.Template.Annotations["checksum/config"], pod.Annotations["checksum/config"])

	binary := os.Getenv("SMCGW_BINARY")
	if binary == "" {
		t.Skip("SKIPPED: SMCGW_BINARY names no program that could check the configuration")
	}
	dir := t.TempDir()
	file, key := filepath.Join(dir, "smcgw.yaml"), filepath.Join(dir, "psk")
	here := strings.NewReplacer("cgroup_path: /host/cgroup\n", "", "/etc/smcgw-psk/psk", key) // those are the pod's
	require.NoError(t, os.WriteFile(file, []byte(here.Replace(r.config.Data["smcgw.yaml"])), 0o600))
	require.NoError(t, os.WriteFile(key, bytes.Repeat([]byte("k"), 64), 0o600))
	out, err := exec.CommandContext(t.Context(), binary, "check", "-c", file).CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// TestChartIsStrict: the check finds a field that the API does not have.
func TestChartIsStrict(t *testing.T) {
	_, _, err := strictly(t).Decode([]byte("apiVersion: apps/v1\nkind: DaemonSet\nspec: { template: { spec: { hostNetwrok: true } } }\n"), nil, nil)
	require.ErrorContains(t, err, "hostNetwrok")
}

// TestExamples: the examples are objects of the API, and a pod of them gets what the device of packages gives a container.
func TestExamples(t *testing.T) {
	text, err := os.ReadFile("../cdi/smcgw.json")
	require.NoError(t, err)
	var device struct {
		Devices []struct {
			ContainerEdits struct {
				Env    []string
				Mounts []struct {
					HostPath, ContainerPath string
					Options                 []string
				}
			}
		}
	}
	require.NoError(t, yaml.Unmarshal(text, &device))
	require.Len(t, device.Devices, 1)
	want := device.Devices[0].ContainerEdits
	require.NotEmpty(t, want.Env)
	require.NotEmpty(t, want.Mounts)

	files, err := filepath.Glob("examples/*.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		object, _, err := strictly(t).Decode(text, nil, nil)
		require.NoError(t, err, file)
		pod, ok := object.(*corev1.Pod)
		require.True(t, ok, "%s: %T", file, object)
		paths := map[string]string{} // of the node, by volume
		for _, v := range pod.Spec.Volumes {
			require.NotNil(t, v.HostPath, v.Name)
			paths[v.Name] = v.HostPath.Path
		}
		for _, c := range pod.Spec.Containers {
			var env []string
			for _, e := range c.Env {
				env = append(env, e.Name+"="+e.Value)
			}
			require.ElementsMatch(t, want.Env, env, file)
			require.Len(t, c.VolumeMounts, len(want.Mounts), file)
			for i, m := range want.Mounts {
				require.Equal(t, m.HostPath, paths[c.VolumeMounts[i].Name], file)
				require.Equal(t, m.ContainerPath, c.VolumeMounts[i].MountPath, file)
				require.Contains(t, m.Options, "ro", "who may write there could take the place of the library, or of the broker")
				require.True(t, c.VolumeMounts[i].ReadOnly, file)
			}
		}
	}
}
